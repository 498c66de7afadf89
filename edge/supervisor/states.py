"""What an agent may do next: one transition table, nothing else.

::

    idle --order--> fetching --fetched--> waiting --begin--> training --trained--> uploading --acked--> idle

A device waits until its conditions allow training, most often not at all; a training is ``paused`` when they no longer
do, and may have ended just before. Any work can be ``dropped`` (refused,
expired, cancelled by a newer order, crashed for good), any state can ``stop``.
"""

from __future__ import annotations

from typing import Literal

from edge.contracts.messages import AgentState

Move = Literal["order", "fetched", "begin", "paused", "trained", "restored", "acked", "dropped", "stop"]

TABLE: dict[tuple[AgentState, Move], AgentState] = {
    ("idle", "order"): "fetching",
    ("idle", "restored"): "uploading",
    ("fetching", "fetched"): "waiting",
    ("waiting", "begin"): "training",
    ("training", "paused"): "waiting",
    ("training", "trained"): "uploading",
    ("waiting", "trained"): "uploading",
    ("uploading", "acked"): "idle",
    ("fetching", "dropped"): "idle",
    ("waiting", "dropped"): "idle",
    ("training", "dropped"): "idle",
    ("uploading", "dropped"): "idle",
    ("idle", "stop"): "stopping",
    ("fetching", "stop"): "stopping",
    ("waiting", "stop"): "stopping",
    ("training", "stop"): "stopping",
    ("uploading", "stop"): "stopping",
}


class IllegalMove(RuntimeError):
    """A move the table does not have: a bug of ours, never the other side's doing."""


class StateMachine:
    """The agent's state. ``state`` changes through :meth:`move` only."""

    def __init__(self) -> None:
        self._state: AgentState = "idle"

    @property
    def state(self) -> AgentState:
        """The present state."""
        return self._state

    def move(self, move: Move) -> AgentState:
        """The new state after ``move``.

        Raises:
            IllegalMove: the table has no such move from here; the state stays as it was.
        """
        try:
            self._state = TABLE[self._state, move]
        except KeyError:
            known = ", ".join(m for s, m in TABLE if s == self._state) or "none"
            raise IllegalMove(f"agent is '{self._state}': no move '{move}', possible are: {known}") from None
        return self._state

"""What an agent tells its owner's home, and hears from it; :class:`Home` itself is a home that asks nothing."""

from __future__ import annotations

from dataclasses import dataclass

from edge.contracts.messages import AgentState


@dataclass(frozen=True)
class Status:
    """What the agent does at this moment.

    Attributes:
        round: that it works for, from 1; 0: none.
        waits_for: why it does not train, in words; empty while it does or has no work.
    """

    state: AgentState
    round: int = 0
    waits_for: str = ""


class Home:
    """Nobody is told, nothing is switched off."""

    def begin(self) -> None:
        """The agent runs."""

    def denial(self) -> str:
        """Why no work is to be taken, in words; empty: it may be."""
        return ""

    def tick(self, now: float, status: Status) -> bool:
        """Called twice a second; whether work that is under way is to be given up.

        Args:
            now: monotonic seconds.
        """
        return False

    def took_part(self, round_number: int) -> None:
        """An update of that round, from 1, is accepted."""

    def close(self) -> None:
        """The agent ends."""

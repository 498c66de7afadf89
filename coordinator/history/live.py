"""What a ledger does not hold: who is connected, and what each device does at this moment.

A running coordinator writes it to ``live.json`` in the run's directory, at most once a second
(:mod:`coordinator.rounds.live_state`). It is no record: it is written over, and means nothing once it is old.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from edge.contracts.messages import AgentState

FILE = "live.json"

STALE_S = 10.0
"""A file that was written longer ago is of a coordinator that is gone, or stands still."""


class LiveDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device as the coordinator last heard it.

    Attributes:
        is_here: it was heard of lately and did not say goodbye.
        heard_at: seconds since 1970.
        state: what it does; ``waiting_for`` and ``reason`` say why one waits, as in its heartbeat.
        step, total_steps, loss: of the work ``assignment_id``.
        away_reason: of its goodbye or last will.
        unusable: why it cannot take part, although it is here: its data, its runtimes, what it lacks.
        temperature_c, battery_percent, charging, throttling: as its newest profile says; None: not known.
    """

    device: str
    is_here: bool
    heard_at: float
    state: AgentState = "idle"
    assignment_id: str = ""
    step: int = 0
    total_steps: int = 0
    loss: float | None = None
    waiting_for: str = ""
    reason: str = ""
    away_reason: str = ""
    unusable: str = ""
    budget_bytes: int = 0
    num_examples: int = 0
    agent_version: str = ""
    board: str = ""
    tags: tuple[str, ...] = ()
    temperature_c: float | None = None
    battery_percent: float | None = None
    charging: bool | None = None
    throttling: tuple[str, ...] = ()


class LiveState(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet as it is.

    Attributes:
        written_at: seconds since 1970.
        deadline_left_s: of the open round; 0 when none is open.
        devices: by id.
    """

    written_at: float
    deadline_left_s: float
    devices: tuple[LiveDevice, ...]

    def is_stale(self, now: float) -> bool:
        """Whether its coordinator is gone or stands still."""
        return now - self.written_at > STALE_S


def read_live(run_dir: Path) -> LiveState | None:
    """What ``run_dir`` has of it; None where there is nothing that can be read."""
    try:
        return msgspec.json.decode((run_dir / FILE).read_bytes(), type=LiveState)
    except (OSError, msgspec.MsgspecError):
        return None

"""What a scenario came to."""

from __future__ import annotations

from typing import Literal

import msgspec

Outcome = Literal["ok", "failed", "not applicable"]


class Failed(Exception):
    """The agent did not do what the clause says; the message has what was expected and what was seen."""


class NotApplicable(Exception):
    """The scenario cannot be played with this agent or this broker; the message says why."""


class Finding(msgspec.Struct, frozen=True):
    """What one scenario came to.

    Attributes:
        clause: the section of docs/wire-protocol.md that it holds the agent to.
        seen: a line with values.
    """

    scenario: str
    clause: str
    outcome: Outcome
    seen: str
    wall_s: float


def expect(holds: bool, message: str) -> None:
    """Check that it holds.

    Raises:
        Failed: it does not.
    """
    if not holds:
        raise Failed(message)

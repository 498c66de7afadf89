"""A scenario, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from coordinator.conformance.kit import Kit

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


@dataclass(frozen=True)
class Scenario:
    """One thing that is held against the protocol. ``play`` gives what was seen, or raises Failed or NotApplicable."""

    name: str
    clause: str
    play: Callable[[Kit], str]

    @property
    def summary(self) -> str:
        """The first line of what ``play`` says about itself."""
        return (self.play.__doc__ or "").strip().splitlines()[0]


REGISTRY: dict[str, Scenario] = {}
"""By name, in the order of playing; :mod:`coordinator.conformance.scenarios` fills it."""


def scenario(clause: str) -> Callable[[Callable[[Kit], str]], Callable[[Kit], str]]:
    """Decorator that registers a function as a scenario; its name is the function's with hyphens."""

    def register(play: Callable[[Kit], str]) -> Callable[[Kit], str]:
        name = play.__name__.replace("_", "-")
        if name in REGISTRY:
            raise ValueError(f"scenario '{name}' is registered twice")
        REGISTRY[name] = Scenario(name, clause, play)
        return play

    return register


def expect(holds: bool, message: str) -> None:
    """Nothing when it holds.

    Raises:
        Failed: it does not.
    """
    if not holds:
        raise Failed(message)

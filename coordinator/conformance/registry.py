"""The scenarios by name: :mod:`coordinator.conformance.scenarios` fills the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.conformance.kit import Kit


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

"""Runs that differ in their seed alone are one group: its mean and range stand for it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinator.reporting.comparison.settings import differing, settings_of
from coordinator.reporting.subject import GLOBAL, RoundFacts, Subject

MOST_NAMED = 3
"""Keys in a group's name; groups that differ in more are called by their folder."""


@dataclass(frozen=True)
class Spread:
    """Mean and range over the runs of a group."""

    mean: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """That of ``values``; None without any."""
        return cls(statistics.fmean(values), min(values), max(values)) if values else None


@dataclass(frozen=True)
class Group:
    """Runs with one configuration.

    Attributes:
        name: what sets it apart from the others.
        settings: of its run file, without the seed.
    """

    name: str
    subjects: tuple[Subject, ...]
    settings: dict[str, str]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of its runs."""
        return tuple(subject.seed for subject in self.subjects)

    def spread(self, value: Callable[[Subject], float | None]) -> Spread | None:
        """Of a value that each run has; runs without it are left out."""
        return Spread.of([found for subject in self.subjects if (found := value(subject)) is not None])

    def curve(self, value: Callable[[RoundFacts], float | None]) -> list[tuple[int, Spread]]:
        """(round, spread) where every run of the group has the value."""
        rows: dict[int, list[float]] = {}
        for subject in self.subjects:
            for entry in subject.rounds:
                if (found := value(entry)) is not None:
                    rows.setdefault(entry.number, []).append(found)
        whole = [(number, found) for number, found in sorted(rows.items()) if len(found) == len(self.subjects)]
        return [(number, spread) for number, found in whole if (spread := Spread.of(found)) is not None]


def grouped(subjects: Sequence[Subject]) -> list[Group]:
    """The groups, in the order of their first runs."""
    together: dict[str, list[Subject]] = {}
    for subject in subjects:
        together.setdefault(repr(sorted(settings_of(subject).items())), []).append(subject)
    settings = [settings_of(members[0]) for members in together.values()]
    keys = differing(settings)
    names = [_name(found, keys, members[0]) for found, members in zip(settings, together.values(), strict=True)]
    names = [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]
    rows = zip(names, together.values(), settings, strict=True)
    return [Group(name, tuple(members), found) for name, members, found in rows]


def _name(settings: dict[str, str], keys: Sequence[str], first: Subject) -> str:
    if not keys:
        return first.name
    named = {key: settings.get(key, "") for key in keys if settings.get(key, "")}
    if "method.name" in named:
        # What else differs are mostly the options of the methods, which their names stand for.
        others = [key for key in keys if not key.startswith("method.")]
        return named["method.name"] if not others else f"{named['method.name']}, {_pairs(named, others, first)}"
    return _pairs(named, keys, first)


def _pairs(named: dict[str, str], keys: Sequence[str], first: Subject) -> str:
    if len(keys) > MOST_NAMED:
        return Path(first.folder).name or first.name
    return ", ".join(f"{key.rpartition('.')[2]} {named.get(key) or 'unset'}" for key in keys)


def score_at(metric: str) -> Callable[[RoundFacts], float | None]:
    """What gives the global model's score of a round; None where it was not evaluated."""
    return lambda entry: entry.scores.get(GLOBAL, {}).get(metric)

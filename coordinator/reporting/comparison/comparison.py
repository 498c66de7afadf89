"""The comparison of some runs as one value, for the terminal, the page and programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.reporting.comparison.groups import Group, Spread, grouped
from coordinator.reporting.comparison.results import Result, common_target, results, shared_metric
from coordinator.reporting.comparison.settings import differing, objections
from coordinator.reporting.subject import Subject


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        metric: that they are compared by; ``target``: the score of the columns about reaching one.
        objections: why scores are no fair comparison, a sentence each.
        differing: keys of the run files whose values are not the same.
    """

    subjects: tuple[Subject, ...]
    groups: tuple[Group, ...]
    metric: str
    is_lower_better: bool
    target: float | None
    objections: tuple[str, ...]
    differing: tuple[str, ...]
    results: tuple[Result, ...]

    def values(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "metric": self.metric,
            "target": self.target,
            "objections": list(self.objections),
            "differences": {key: {g.name: g.settings.get(key) for g in self.groups} for key in self.differing},
            "groups": [_values(result) for result in self.results],
        }


def compare(subjects: Sequence[Subject], *, target: float | None = None) -> Comparison:
    """Lay ``subjects`` side by side.

    Args:
        target: the score of "rounds to"; the best that all of them reached where it is not given.
    """
    groups = grouped(subjects)
    metric = shared_metric(subjects)
    lower = subjects[0].is_lower_better if metric == subjects[0].metric else True
    goal = common_target(groups, metric, is_lower_better=lower) if target is None else target
    return Comparison(
        subjects=tuple(subjects),
        groups=tuple(groups),
        metric=metric,
        is_lower_better=lower,
        target=goal,
        objections=tuple(objections(subjects)),
        differing=tuple(differing([group.settings for group in groups])),
        results=tuple(results(groups, metric, goal, is_lower_better=lower)),
    )


def _values(result: Result) -> dict[str, Any]:
    def spread(found: Spread | None) -> dict[str, float] | None:
        return None if found is None else {"mean": found.mean, "lowest": found.lowest, "highest": found.highest}

    names = ("score", "rounds", "bytes", "wall_s", "total_bytes", "total_wall_s", "devices", "peak_bytes")
    return {
        "name": result.group.name,
        "runs": [{"run_dir": s.folder, "seed": s.seed, "state": s.state} for s in result.group.subjects],
        "reached": result.reached,
        **{name: spread(getattr(result, name)) for name in names},
    }

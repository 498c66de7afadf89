"""What each group reached, and what it cost to reach the same score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.reporting.comparison.groups import Group, Spread, score_at
from coordinator.reporting.subject import Subject


@dataclass(frozen=True)
class Result:
    """One group.

    Attributes:
        score: of the final global model, or of the newest that was evaluated.
        reached: runs that reached the target.
        rounds, bytes, wall_s: until they did, over those; None where none did.
        total_bytes, total_wall_s: of whole runs.
        devices: that trained.
        peak_bytes: the largest memory that one of them took; None where nothing was measured.
    """

    group: Group
    score: Spread | None
    reached: int
    rounds: Spread | None
    bytes: Spread | None
    wall_s: Spread | None
    total_bytes: Spread | None
    total_wall_s: Spread | None
    devices: Spread | None
    peak_bytes: Spread | None


def shared_metric(subjects: Sequence[Subject]) -> str:
    """The metric that they are compared by: the first run's where all have it, else ``loss``."""
    first = subjects[0].metric
    return first if all(_has(subject, first) for subject in subjects) else "loss"


def common_target(groups: Sequence[Group], metric: str, *, is_lower_better: bool) -> float | None:
    """The best score that every run with scores reached at some round; None where there are none."""
    best = [
        (min if is_lower_better else max)(value for _, value in points)
        for group in groups
        for subject in group.subjects
        if (points := subject.curve("server", metric))
    ]
    return None if not best else (max if is_lower_better else min)(best)


def results(groups: Sequence[Group], metric: str, target: float | None, *, is_lower_better: bool) -> list[Result]:
    """One for each group, in their order."""
    return [_result(group, metric, target, is_lower_better) for group in groups]


def _result(group: Group, metric: str, target: float | None, is_lower_better: bool) -> Result:
    hits = [found for s in group.subjects if (found := _first_at(s, metric, target, is_lower_better)) is not None]
    return Result(
        group=group,
        score=group.spread(lambda subject: _last(subject, metric)),
        reached=len(hits),
        rounds=Spread.of([float(rounds) for rounds, _, _ in hits]),
        bytes=Spread.of([float(count) for _, count, _ in hits]),
        wall_s=Spread.of([seconds for _, _, seconds in hits]),
        total_bytes=group.spread(lambda s: float(s.bytes_up + s.bytes_down)),
        total_wall_s=group.spread(lambda s: s.wall_s),
        devices=group.spread(lambda s: float(sum(1 for d in s.devices if d.reports))),
        peak_bytes=group.spread(lambda s: float(max((d.measured_peak_bytes for d in s.devices), default=0)) or None),
    )


def _has(subject: Subject, metric: str) -> bool:
    return bool(subject.curve("server", metric)) or not subject.rounds


def _last(subject: Subject, metric: str) -> float | None:
    if metric == subject.metric:
        return subject.score
    points = subject.curve("server", metric)
    return points[-1][1] if points else None


def _first_at(
    subject: Subject, metric: str, target: float | None, is_lower_better: bool
) -> tuple[int, int, float] | None:
    """(round, bytes both ways, seconds) at which the target is first reached."""
    count, seconds, value = 0, 0.0, score_at(metric)
    for entry in subject.rounds:
        count += entry.bytes_up + entry.bytes_down
        seconds += entry.wall_s or 0.0
        found = value(entry)
        if found is not None and target is not None and (found <= target if is_lower_better else found >= target):
            return entry.number, count, seconds
    return None

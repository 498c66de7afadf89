"""A comparison's table in words and figures, the same on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Callable

from coordinator.reporting.comparison.comparison import Comparison
from coordinator.reporting.comparison.groups import Spread
from coordinator.reporting.comparison.results import Result
from coordinator.reporting.markup import duration, megabytes, size


def result_table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Headings and rows, a row for each group; columns that nobody has a value in are left out."""
    goal = "" if comparison.target is None else f" to {comparison.target:.4g}"
    heads = [
        "runs",
        "seeds",
        comparison.metric,
        *((f"rounds{goal}", f"sent{goal}", f"time{goal}") if goal else ()),
        "sent in all",
        "time in all",
        "devices",
        "largest memory (MB)",
    ]
    rows = [_row(result, has_goal=bool(goal)) for result in comparison.results]
    kept = [0, *(i for i in range(1, len(heads)) if any(row[i] != "-" for row in rows))]
    return [heads[i] for i in kept], [[row[i] for i in kept] for row in rows]


def difference_table(comparison: Comparison, most_keys: int = 40) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: a row for each key whose values differ, a column for each group."""
    rows = [
        [key, *(group.settings.get(key, "-") or '""' for group in comparison.groups)]
        for key in comparison.differing[:most_keys]
    ]
    return ["setting", *(group.name for group in comparison.groups)], rows


def _row(result: Result, *, has_goal: bool) -> list[str]:
    seeds = result.group.seeds
    told = ", ".join(map(str, seeds)) if len(seeds) <= 4 else f"{len(seeds)} seeds"
    reach = [_spread(result.rounds, _whole), _spread(result.bytes, size), _spread(result.wall_s, duration)]
    if result.reached < len(seeds):
        missed = f"{result.reached} of {len(seeds)} reach it"
        reach[0] = missed if result.reached == 0 else f"{reach[0]}; {missed}"
    return [
        result.group.name,
        told,
        _spread(result.score, lambda value: f"{value:.4f}"),
        *(reach if has_goal else ()),
        _spread(result.total_bytes, size),
        _spread(result.total_wall_s, duration),
        _spread(result.devices, _whole),
        _spread(result.peak_bytes, megabytes),
    ]


def _spread(found: Spread | None, shown: Callable[[float], str]) -> str:
    """``0.9312 (0.9208 to 0.9401)``; one figure where they look the same."""
    if found is None:
        return "-"
    low, middle, high = shown(found.lowest), shown(found.mean), shown(found.highest)
    return middle if low == high else f"{middle} ({low} to {high})"


def _whole(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() else f"{value:.1f}"

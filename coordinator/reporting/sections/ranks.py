"""Effective rank of decomposed layers, where the run asked for spectra."""

from __future__ import annotations

from coordinator.reporting.markup import folded, table
from coordinator.reporting.plots.lines import Series, line_plot
from coordinator.reporting.subject import Subject


def ranks(subject: Subject) -> str:
    """Their mean by round, and each layer's first and last; empty without."""
    if not subject.ranks:
        return ""
    numbers = sorted(subject.ranks)
    first, last = subject.ranks[numbers[0]], subject.ranks[numbers[-1]]
    means = [(float(n), sum(subject.ranks[n].values()) / len(subject.ranks[n])) for n in numbers]
    caption = "mean effective rank of the decomposed layers, by round"
    plot = line_plot([Series("mean", means)], caption=caption, y_title="effective rank")
    rows = [(path, f"{first.get(path, 0.0):.1f}", f"{value:.1f}") for path, value in last.items()]
    heads = ("layer", f"round {numbers[0]}", f"round {numbers[-1]}")
    return f'<div class="charts">{plot}</div>{folded("every layer", table(heads, rows))}'

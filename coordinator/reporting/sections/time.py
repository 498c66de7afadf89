"""Time: what each round was made of."""

from __future__ import annotations

from coordinator.reporting.plots.lines import Series, line_plot
from coordinator.reporting.plots.stacks import MOST_BARS, stacked_bars
from coordinator.reporting.subject import Subject

PARTS = ("placing, cutting, exporting", "training and sending", "aggregating, evaluating, storing")


def time(subject: Subject) -> str:
    """Seconds by round; empty before the first."""
    split = [
        (r.number, (r.planning_s, r.training_s, r.aggregating_s))
        for r in subject.rounds
        if r.planning_s is not None and r.training_s is not None and r.aggregating_s is not None
    ]
    caption = "seconds by round, by the coordinator's clock"
    if split and len(split) == len(subject.rounds) <= MOST_BARS:
        return f'<div class="charts">{stacked_bars(split, PARTS, caption=caption, y_title="seconds")}</div>'
    series = [
        Series("coordinator's clock", [(r.number, r.wall_s) for r in subject.rounds if r.wall_s is not None]),
        Series("simulated devices", [(r.number, r.simulated_s) for r in subject.rounds if r.simulated_s is not None]),
    ]
    drawn = line_plot(series, caption="seconds by round", y_title="seconds", from_zero=True)
    return f'<div class="charts">{drawn}</div>' if drawn else ""

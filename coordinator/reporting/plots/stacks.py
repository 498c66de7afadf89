"""Stacked bars: what each round's time, or its bytes, was made of."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from coordinator.reporting.plots.axis import Axis, axis_of
from coordinator.reporting.plots.frame import Area, colour, figure, grid, legend, picture

MOST_BARS = 120
"""More rounds are better shown as lines."""


def stacked_bars(
    bars: Sequence[tuple[int, Sequence[float]]], names: Sequence[str], *, caption: str, y_title: str
) -> str:
    """The figure; empty without bars.

    Args:
        bars: (round, a value for each of ``names``).
    """
    if not bars or not any(sum(values) for _, values in bars):
        return ""
    area = Area()
    first, last = bars[0][0], bars[-1][0]
    marks = axis_of([first, last], is_whole=True, marks=8).marks
    x = Axis(first - 0.5, last + 0.5, tuple(mark for mark in marks if mark <= last))
    y = axis_of([sum(values) for _, values in bars], from_zero=True)
    width = max(0.6, 0.7 * (area.across(1) - area.across(0)) / (last - first + 1))
    parts = [grid(area, x, y, "round", y_title)]
    for number, values in bars:
        left, below = area.across(x.share(number)) - width / 2, 0.0
        for index, value in enumerate(values):
            top, floor = area.up(y.share(below + value)), area.up(y.share(below))
            below += value
            parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{max(0.0, floor - top):.1f}" '
                f'fill="{colour(index)}"><title>round {number}, {escape(names[index])}: {value:,.1f}</title></rect>'
            )
    colours = [colour(index) for index in range(len(names))]
    return figure(picture(area, caption, "".join(parts)), caption, legend(names, colours))

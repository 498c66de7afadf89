"""Bars of how many: devices by their score."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.reporting.plots.axis import Axis, axis_of
from coordinator.reporting.plots.frame import Area, colour, figure, grid, picture


def histogram(counts: Sequence[float], edges: Sequence[float], *, caption: str, x_title: str) -> str:
    """The figure; empty where nothing was counted.

    Args:
        edges: of the bars, one more than there are ``counts``.
    """
    if not counts or not max(counts):
        return ""
    area, marks = Area(), axis_of(edges, marks=6).marks
    x = Axis(edges[0], edges[-1], tuple(mark for mark in marks if edges[0] <= mark <= edges[-1]))
    most = axis_of([0, max(counts)], from_zero=True)
    y = Axis(most.low, most.high, tuple(mark for mark in most.marks if float(mark).is_integer()))
    parts = [grid(area, x, y, x_title, "devices")]
    for count, low, high in zip(counts, edges, edges[1:], strict=False):
        left, right = area.across(x.share(low)), area.across(x.share(high))
        top = area.up(y.share(count))
        parts.append(
            f'<rect x="{left + 1:.1f}" y="{top:.1f}" width="{max(0.5, right - left - 2):.1f}" '
            f'height="{area.up(0) - top:.1f}" fill="{colour(0)}"><title>{low:.3f} to {high:.3f}: {int(count)} devices'
            "</title></rect>"
        )
    return figure(picture(area, caption, "".join(parts)), caption)

"""A row for each device on one axis: what was predicted beside what was measured, and the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from coordinator.reporting.plots.axis import axis_of
from coordinator.reporting.plots.frame import Area, colour, figure, picture

ROW = 24


@dataclass(frozen=True)
class Row:
    """One device; 0: there is no such value."""

    name: str
    predicted: float
    measured: float
    limit: float


def predicted_beside_measured(rows: Sequence[Row], *, caption: str, x_title: str) -> str:
    """The figure, a row each; empty without rows."""
    values = [v for row in rows for v in (row.predicted, row.measured, row.limit) if v > 0]
    if not values:
        return ""
    longest = max(len(row.name) for row in rows)
    area = Area(height=14 + 46 + ROW * len(rows), left=min(210, 16 + 8 * longest))
    x = axis_of(values, marks=7)
    floor = area.up(0)
    parts = []
    for mark in x.marks:
        at = area.across(x.share(mark))
        parts.append(f'<path class="grid" d="M{at:.1f} {area.top}V{floor:.1f}"/>')
        parts.append(f'<text x="{at:.1f}" y="{floor + 16:.1f}" text-anchor="middle">{x.label(mark)}</text>')
    middle = (area.left + area.across(1)) / 2
    parts.append(
        f'<text class="title" x="{middle:.1f}" y="{area.height - 8}" text-anchor="middle">{escape(x_title)}</text>'
    )
    for index, row in enumerate(rows):
        y = area.top + ROW * (index + 0.5)
        name = row.name if len(row.name) <= 24 else row.name[:23] + "…"
        parts.append(f'<text x="{area.left - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>')
        if row.predicted > 0 and row.measured > 0:
            ends = sorted(area.across(x.share(v)) for v in (row.predicted, row.measured))
            parts.append(f'<path class="join" d="M{ends[0]:.1f} {y:.1f}H{ends[1]:.1f}"/>')
        if row.limit > 0:
            at = area.across(x.share(row.limit))
            parts.append(
                f'<path class="limit" d="M{at:.1f} {y - 8:.1f}V{y + 8:.1f}"><title>{escape(row.name)}: budget '
                f"{row.limit:.1f}</title></path>"
            )
        if row.predicted > 0:
            at = area.across(x.share(row.predicted))
            parts.append(
                f'<circle cx="{at:.1f}" cy="{y:.1f}" r="5" fill="var(--page)" stroke="{colour(0)}" stroke-width="2">'
                f"<title>{escape(row.name)}: predicted {row.predicted:.1f}</title></circle>"
            )
        if row.measured > 0:
            at, is_over = area.across(x.share(row.measured)), 0 < row.limit < row.measured
            parts.append(
                f'<circle cx="{at:.1f}" cy="{y:.1f}" r="5" fill="{"var(--over)" if is_over else colour(1)}">'
                f"<title>{escape(row.name)}: measured {row.measured:.1f}</title></circle>"
            )
    # Above the drawing, which may be longer than a screen.
    return figure(_key() + picture(area, caption, "".join(parts)), caption)


def _key() -> str:
    def entry(mark: str, text: str) -> str:
        return f'<span><svg class="key" viewBox="0 0 22 14" aria-hidden="true">{mark}</svg>{text}</span>'

    hollow = f'<circle cx="11" cy="7" r="5" fill="var(--page)" stroke="{colour(0)}" stroke-width="2"/>'
    return (
        '<div class="legend">'
        + entry(hollow, "predicted before the run")
        + entry(f'<circle cx="11" cy="7" r="5" fill="{colour(1)}"/>', "measured on the device, the largest")
        + entry('<path class="limit" d="M11 0V14"/>', "budget")
        + "</div>"
    )

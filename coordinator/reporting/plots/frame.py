"""What all plots share: the drawing area, gridlines with numbers, titles of axes, the legend, colours by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from coordinator.reporting.plots.axis import Axis

COLOURS = 8
"""Colours ``--c1`` to ``--c8`` of the page; further series repeat them with other dashes."""

DASHES = ("", "6 3", "2 3", "8 3 2 3")


@dataclass(frozen=True)
class Area:
    """The drawing area in pixels of the picture.

    Attributes:
        width, height: of the whole picture.
        left, right, top, bottom: margins around the area.
    """

    width: int = 560
    height: int = 280
    left: int = 62
    right: int = 14
    top: int = 14
    bottom: int = 46

    def across(self, share: float) -> float:
        """x of a share of the width."""
        return self.left + share * (self.width - self.left - self.right)

    def up(self, share: float) -> float:
        """y of a share of the height."""
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)


def colour(index: int) -> str:
    """That of a series, as a CSS value."""
    return f"var(--c{index % COLOURS + 1})"


def dash(index: int) -> str:
    """Of a series, so that it is told from others in print and by those who see colours differently."""
    return DASHES[(index // COLOURS) % len(DASHES)]


def grid(area: Area, x: Axis, y: Axis, x_title: str, y_title: str) -> str:
    """Gridlines, numbers and titles of both axes."""
    floor, right = area.up(0), area.across(1)
    parts = []
    for mark in y.marks:
        at = area.up(y.share(mark))
        parts.append(f'<path class="grid" d="M{area.left} {at:.1f}H{right:.1f}"/>')
        parts.append(f'<text x="{area.left - 6}" y="{at + 4:.1f}" text-anchor="end">{y.label(mark)}</text>')
    for mark in x.marks:
        at = area.across(x.share(mark))
        parts.append(f'<path class="grid" d="M{at:.1f} {area.top}V{floor:.1f}"/>')
        parts.append(f'<text x="{at:.1f}" y="{floor + 16:.1f}" text-anchor="middle">{x.label(mark)}</text>')
    middle = (area.top + floor) / 2
    parts.append(f'<path class="axis" d="M{area.left} {area.top}V{floor:.1f}H{right:.1f}"/>')
    parts.append(
        f'<text class="title" x="{(area.left + right) / 2:.1f}" y="{area.height - 8}" text-anchor="middle">'
        f"{escape(x_title)}</text>"
    )
    parts.append(
        f'<text class="title" x="14" y="{middle:.1f}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle:.1f})">{escape(y_title)}</text>'
    )
    return "".join(parts)


def picture(area: Area, label: str, body: str) -> str:
    """The SVG element; ``label`` says what it shows to those who do not see it."""
    return f'<svg viewBox="0 0 {area.width} {area.height}" role="img" aria-label="{escape(label)}">{body}</svg>'


def legend(names: Sequence[str], colours: Sequence[str], dashes: Sequence[str] = ()) -> str:
    """A line below a plot that names its series; empty for one alone."""
    if len(names) < 2:
        return ""
    entries = []
    for index, name in enumerate(names):
        dashed = f' stroke-dasharray="{dashes[index]}"' if index < len(dashes) and dashes[index] else ""
        key = f'<svg class="key" viewBox="0 0 22 8" aria-hidden="true"><path d="M1 4H21" stroke="{colours[index]}"'
        entries.append(f'<span>{key} stroke-width="3"{dashed}/></svg>{escape(name)}</span>')
    return f'<div class="legend">{"".join(entries)}</div>'


def figure(drawing: str, caption: str, key: str = "") -> str:
    """A plot with its legend and what it shows."""
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawing}{key}</figure>"

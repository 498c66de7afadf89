"""Lines over the rounds: scores, losses, bytes; with a band where a line stands for several seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from coordinator.reporting.plots.axis import Axis, axis_of
from coordinator.reporting.plots.frame import Area, colour, dash, figure, grid, legend, picture

MOST_DOTS = 40
"""A line with more points has no dot at each."""


@dataclass(frozen=True)
class Series:
    """One line.

    Attributes:
        points: (x, y), by x; y is finite.
        band: (x, lowest, highest) around it, where the line is a mean.
        is_main: drawn thicker, such as the global model among the levels.
    """

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()
    is_main: bool = False


def line_plot(
    series: Sequence[Series],
    *,
    caption: str,
    y_title: str,
    x_title: str = "round",
    from_zero: bool = False,
    may_log: bool = False,
    target: float | None = None,
) -> str:
    """The figure; empty where no series has a point.

    Args:
        from_zero: y begins at 0, as amounts do.
        may_log: a logarithmic y where values span several powers of ten.
        target: a value that is marked across the plot.
    """
    shown = [s for s in (_finite(s) for s in series) if s.points]
    if not shown:
        return ""
    values = [y for s in shown for _, y in s.points]
    values += [bound for s in shown for _, *bounds in s.band for bound in bounds]
    if target is not None:
        values.append(target)
    x = axis_of([at for s in shown for at, _ in s.points], is_whole=x_title == "round", marks=8)
    y = axis_of(values, from_zero=from_zero, may_log=may_log)
    area = Area()
    title = y_title + (", logarithmic" if y.is_log else "")
    parts = [grid(area, x, y, x_title, title)]
    if target is not None:
        at = area.up(y.share(target))
        parts.append(f'<path class="target" d="M{area.left} {at:.1f}H{area.across(1):.1f}"/>')
    parts += [_band(area, x, y, s, index) for index, s in enumerate(shown) if s.band]
    # The main line is drawn last, above the others.
    order = sorted(range(len(shown)), key=lambda index: shown[index].is_main)
    parts += [_line(area, x, y, shown[index], index) for index in order]
    names = [s.name for s in shown]
    colours, dashes = [colour(i) for i in range(len(shown))], [dash(i) for i in range(len(shown))]
    return figure(picture(area, caption, "".join(parts)), caption, legend(names, colours, dashes))


def _finite(series: Series) -> Series:
    points = tuple((x, y) for x, y in series.points if math.isfinite(y))
    band = tuple(b for b in series.band if math.isfinite(b[1]) and math.isfinite(b[2]))
    return Series(series.name, points, band, series.is_main)


def _line(area: Area, x: Axis, y: Axis, series: Series, index: int) -> str:
    at = [(area.across(x.share(px)), area.up(y.share(py)), px, py) for px, py in series.points]
    path = " ".join(f"{'L' if i else 'M'}{px:.1f} {py:.1f}" for i, (px, py, _, _) in enumerate(at))
    dashed = f' stroke-dasharray="{dash(index)}"' if dash(index) else ""
    width = 3 if series.is_main else 2
    drawn = f'<path d="{path}" fill="none" stroke="{colour(index)}" stroke-width="{width}"{dashed}/>'
    if len(at) > MOST_DOTS:
        return drawn
    return drawn + "".join(
        f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour(index)}"><title>{_told(series.name, vx, vy)}</title>'
        "</circle>"
        for px, py, vx, vy in at
    )


def _told(name: str, x: float, y: float) -> str:
    return f"{escape(name)}, {x:g}: {y:.4g}"


def _band(area: Area, x: Axis, y: Axis, series: Series, index: int) -> str:
    low = [(area.across(x.share(at)), area.up(y.share(value))) for at, value, _ in series.band]
    high = [(area.across(x.share(at)), area.up(y.share(value))) for at, _, value in series.band]
    points = " ".join(f"{px:.1f},{py:.1f}" for px, py in [*low, *reversed(high)])
    return f'<polygon points="{points}" fill="{colour(index)}" opacity="0.18"/>'

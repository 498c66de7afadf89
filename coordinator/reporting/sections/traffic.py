"""Bytes by round, both ways."""

from __future__ import annotations

from coordinator.reporting.markup import paragraph, size
from coordinator.reporting.plots.lines import Series, line_plot
from coordinator.reporting.plots.stacks import MOST_BARS, stacked_bars
from coordinator.reporting.subject import Subject

_MB = 1e6
_NAMES = ("to devices", "from devices")


def traffic(subject: Subject) -> str:
    """The plot; empty where nothing was sent."""
    if not subject.bytes_up and not subject.bytes_down:
        return ""
    bars = [(r.number, (r.bytes_down / _MB, r.bytes_up / _MB)) for r in subject.rounds]
    caption, unit = "weights, artifacts and updates by round", "MB (10⁶ bytes)"
    if len(bars) <= MOST_BARS:
        plot = stacked_bars(bars, _NAMES, caption=caption, y_title=unit)
    else:
        series = [Series(name, [(n, values[i]) for n, values in bars]) for i, name in enumerate(_NAMES)]
        plot = line_plot(series, caption=caption, y_title=unit, from_zero=True)
    payload, wire = subject.bytes_up + subject.bytes_down, sum(subject.wire_bytes.values())
    more = f" With headers and repeats {size(wire)} went over the wire." if wire else ""
    down, up = size(subject.bytes_down), size(subject.bytes_up)
    told = f"{down} to devices and {up} from them, {size(payload)} in all.{more}"
    return f'<div class="charts">{plot}</div>' + paragraph(told, kind="what")

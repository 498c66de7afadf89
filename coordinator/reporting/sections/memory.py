"""Memory: what each device was predicted to need beside what it took, and its budget."""

from __future__ import annotations

import statistics

from coordinator.reporting.markup import MB, paragraph
from coordinator.reporting.plots.ranges import Row, predicted_beside_measured
from coordinator.reporting.subject import DeviceFacts, Subject

MOST_ROWS = 40
"""Devices in the plot; of more those that are nearest to their budget."""


def memory(subject: Subject) -> str:
    """The plot and a sentence about how far predictions were off; empty where nothing was measured."""
    found = [d for d in subject.devices if d.measured_peak_bytes]
    if not found:
        return ""
    shown = sorted(found, key=_room)[:MOST_ROWS]
    rows = [
        Row(d.device, d.predicted_peak_bytes / MB, d.measured_peak_bytes / MB, d.budget_bytes / MB)
        for d in sorted(shown, key=lambda d: d.device)
    ]
    caption = "memory of supervisor and trainer together, by device"
    if len(found) > MOST_ROWS:
        caption += f" ({MOST_ROWS} of {len(found)}: those nearest to their budget)"
    plot = predicted_beside_measured(rows, caption=caption, x_title="peak memory, MB (2²⁰ bytes)")
    return f'<div class="charts">{plot}</div>' + paragraph(_told(found), kind="what")


def _room(device: DeviceFacts) -> float:
    """What is left of the budget, as a share; large without one."""
    return 1 - device.measured_peak_bytes / device.budget_bytes if device.budget_bytes else 1.0


def _told(found: list[DeviceFacts]) -> str:
    shares = [d.measured_peak_bytes / d.predicted_peak_bytes for d in found if d.predicted_peak_bytes]
    if not shares:
        return ""
    low, middle, high = min(shares), statistics.median(shares), max(shares)
    return (
        f"Measured memory was {middle:.0%} of the prediction in the median ({low:.0%} to {high:.0%}). A prediction has "
        "a margin in it, so that a device stays below its budget."
    )

"""The table of devices."""

from __future__ import annotations

from coordinator.reporting.markup import megabytes, paragraph, table
from coordinator.reporting.subject import DeviceFacts, Subject

MOST_ROWS = 500

_HEADS = (
    *("device", "board", "level", "runtime", "threads", "budget", "predicted", "measured", "of budget"),
    *("step ms", "MB to it", "MB from it", "reports", "problems"),
)


def devices(subject: Subject) -> str:
    """A row for each, by name; what no device has is left out."""
    shown = subject.devices[:MOST_ROWS]
    if not shown:
        return ""
    rows = [_row(device) for device in shown]
    kept = [0, *(i for i in range(1, len(_HEADS)) if any(row[i] != "-" for row in rows))]
    words = ("board", "level", "runtime", "problems")
    told = "MB to and from a device are of 10⁶ bytes."
    if not subject.is_simulated:
        told += (
            " Memory is in MB of 2²⁰ bytes, of supervisor and trainer together: the budget holds for their sum. "
            "Step ms is the median of a training step on the device."
        )
    if len(subject.devices) > MOST_ROWS:
        told += f" The first {MOST_ROWS} of {len(subject.devices):,} devices; the others are in the run's ledger."
    cells = [[row[i] for i in kept] for row in rows]
    return table([_HEADS[i] for i in kept], cells, texts=words) + paragraph(told, kind="what")


def _row(d: DeviceFacts) -> tuple[str, ...]:
    level = (d.level if d.form == "plain" else f"{d.level}, {d.form}") or "-"
    measured, budget = d.measured_peak_bytes, d.budget_bytes
    return (
        d.device,
        d.board or "-",
        level,
        d.runtime or "-",
        str(d.threads or "-"),
        megabytes(budget) if budget else "-",
        megabytes(d.predicted_peak_bytes),
        megabytes(measured),
        f"{measured / budget:.0%}" if measured and budget else "-",
        f"{d.step_ms:.1f}" if d.step_ms else "-",
        f"{d.bytes_down / 1e6:.1f}" if d.bytes_down else "-",
        f"{d.bytes_up / 1e6:.1f}" if d.bytes_up else "-",
        str(d.reports),
        "; ".join(d.problems) or "-",
    )

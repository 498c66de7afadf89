"""The device table of a run as people see it: fits 80 columns, memory in MB of 2^20 bytes, traffic in those of 10^6."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from coordinator.planning.planner import MB

_NEEDED = 78
_UNBOUNDED = 200
"""Columns where nothing is a terminal: a log has no edge to wrap at."""


def print_devices(rows: Sequence[dict[str, Any]]) -> None:
    """Write the table of ``rows`` (of :func:`coordinator.cli.results.device_table`) to stderr."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else _UNBOUNDED)
    console.width = max(console.width, _NEEDED)
    runtimes = sorted({row["runtime"] for row in rows})
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("device", overflow="fold")
    table.add_column("cut", overflow="fold")
    if len(runtimes) > 1:
        table.add_column("runtime", overflow="fold")
    for heading in ("budget\nMB", "predicted\nMB", "measured\nMB", "step\nms", "down\nMB", "up\nMB", "rounds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        measured = f"{row['measured_peak_bytes'] / MB:.1f}"
        table.add_row(
            row["device"],
            row["level"] if row["form"] == "plain" else f"{row['level']}, {row['form']}",
            *([row["runtime"]] if len(runtimes) > 1 else []),
            f"{row['budget_bytes'] / MB:.0f}" if row["budget_bytes"] else "-",
            f"{row['predicted_peak_bytes'] / MB:.1f}",
            Text(f"{measured}*", style="bold red") if row["over_budget"] else f"{measured} ",
            f"{row['step_ms']:.1f}",
            f"{row['bytes_down'] / 1e6:.1f}",
            f"{row['bytes_up'] / 1e6:.1f}",
            str(row["rounds"]),
        )
    console.print(f"\n{len(rows)} devices on {', '.join(runtimes) or 'no runtime'}; peak memory of both processes")
    console.print(table)
    if any(row["over_budget"] for row in rows):
        console.print("* more than its budget")

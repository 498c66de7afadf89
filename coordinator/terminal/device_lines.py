"""One device in words: what it is, its newest work, the end of its agent's log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from coordinator.dashboard.device_log import last_lines
from coordinator.dashboard.fleet import DeviceView
from coordinator.history.history import History
from coordinator.history.records import AssignmentRecord

WORK = 8
"""Newest assignments that are shown."""

MB = 2**20


def device_lines(history: History, view: DeviceView) -> list[str]:
    """Lines for people; reads the ledger."""
    work = history.assignments_of_device(view.device, limit=WORK)
    return [*_what_it_is(view), "", *_work(work), "", *_log(history.folder, view.device)]


def _what_it_is(view: DeviceView) -> Iterator[str]:
    record, live = view.record, view.live
    yield f"{view.status}{f': {view.why}' if view.why else ''}"
    board = (live.board if live else "") or (record.board if record else "")
    if board:
        yield board + (f", agent {live.agent_version}" if live and live.agent_version else "")
    if record is not None and record.level:
        measured = f"{record.measured_peak_bytes / MB:.0f}" if record.measured_peak_bytes else "-"
        budget = f"{record.budget_bytes / MB:.0f} MB" if record.budget_bytes else "no limit"
        yield (
            f"level {record.level}; memory predicted {record.predicted_peak_bytes / MB:.0f} MB, "
            f"measured {measured} MB, budget {budget}"
        )
    if live is not None and live.battery_percent is not None:
        power = {True: ", charging", False: ", on battery"}.get(live.charging, "") if live.charging is not None else ""
        yield f"battery {live.battery_percent:.0f} %{power}"


def _work(work: Sequence[AssignmentRecord]) -> Iterator[str]:
    yield "newest work:" if work else "it has had no work yet"
    for entry in work:
        told = f"  round {entry.round + 1}" + (f", attempt {entry.attempt + 1}" if entry.attempt else "")
        told += f": {entry.state}"
        if entry.state == "reported":
            loss = "" if entry.loss is None else f", loss {entry.loss:.4f}"
            seconds = "" if entry.trained_s is None else f", {entry.trained_s:.1f} s"
            told += f", {entry.num_examples} examples{loss}{seconds}"
        yield told + (f" ({entry.reason or entry.code})" if entry.reason or entry.code else "")


def _log(folder: Path | None, device: str) -> Iterator[str]:
    lines = () if folder is None else last_lines(folder, device)
    if lines:
        yield "the end of its agent's log:"
        yield from lines
    else:
        yield f"its agent's log is not on this machine; of a device in the fleet book: apportion device logs {device}"

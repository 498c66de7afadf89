"""What the screen says: cells of the table of devices, the lines above it, events."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from coordinator.dashboard.fleet import DeviceView, Status
from coordinator.history.records import LedgerEvent, RoundRecord
from coordinator.reporting.markup import size
from coordinator.terminal.look import Look

MB = 2**20
_BLOCKS = "▁▂▃▄▅▆▇█"

STYLES: dict[Status, str] = {
    "training": "green",
    "fetching": "cyan",
    "uploading": "cyan",
    "waiting": "yellow",
    "reported": "green",
    "here": "",
    "refused": "red",
    "barred": "red",
    "unusable": "red",
    "away": "dim",
    "expired": "yellow",
    "rejected": "red",
    "unasked": "dim",
}

NARROW = ("device", "does", "step", "level", "MB used", "MB budget", "why")
WIDE = (
    "device",
    "does",
    "step",
    "loss",
    "level",
    "MB used",
    "MB budget",
    "of it",
    "step ms",
    "reports",
    "°C",
    "tags",
    "why",
)
WIDE_FROM = 110
"""Columns of a terminal from which the table has all of its own."""


def columns_for(width: int) -> tuple[str, ...]:
    """Those that a terminal of ``width`` columns has room for."""
    return WIDE if width >= WIDE_FROM else NARROW


def cells(view: DeviceView, columns: Sequence[str]) -> tuple[Text, ...]:
    """A row of the table."""
    return tuple(_cell(view, column) for column in columns)


def _cell(view: DeviceView, column: str) -> Text:
    record, live = view.record, view.live
    measured = 0 if record is None else record.measured_peak_bytes
    budget = (record.budget_bytes if record else 0) or (live.budget_bytes if live else 0)
    if column == "device":
        return Text(view.device, no_wrap=True, overflow="ellipsis")
    if column == "does":
        return Text("not asked" if view.status == "unasked" else view.status, style=STYLES[view.status])
    if column == "step":
        busy = live is not None and view.status == "training" and live.total_steps
        return _right(f"{live.step}/{live.total_steps}" if busy and live else "")
    if column == "loss":
        return _right(f"{live.loss:.3f}" if live and view.status == "training" and live.loss is not None else "")
    if column == "level":
        return Text(record.level if record else "")
    if column == "MB used":
        return _right(f"{measured / MB:.0f}" if measured else "", "red" if 0 < budget < measured else "")
    if column == "of it":
        return _right(f"{measured / budget:.0%}" if measured and budget else "", "red" if 0 < budget < measured else "")
    if column == "MB budget":
        return _right(f"{budget / MB:.0f}" if budget else "")
    if column == "step ms":
        return _right(f"{record.step_ms:.0f}" if record and record.step_ms else "")
    if column == "reports":
        return _right(str(record.counts.reported) if record else "")
    if column == "°C":
        heat = live.temperature_c if live else None
        return _right("" if heat is None else f"{heat:.0f}", "red" if view.is_hot else "")
    if column == "tags":
        return Text(", ".join(live.tags) if live else "")
    return Text(view.why, style="dim", no_wrap=True, overflow="ellipsis")


def _right(text: str, style: str = "") -> Text:
    return Text(text, style=style, justify="right")


def run_line(look: Look) -> Text:
    """The run as a whole."""
    run = look.run
    state = "finished" if run.state == "finished" else "running" if look.is_running else "no coordinator runs"
    asked = {"pause": "paused", "drain": "ends after this round", "stop": "stops"}.get(run.request, "")
    text = Text.assemble((run.name, "bold"), f"  {run.model} under {run.method}  ")
    text.append(state, style="green" if look.is_running else "dim" if run.state == "finished" else "yellow")
    if asked and run.state != "finished":
        text.append(f", {asked}", style="bold yellow")
    return text


def round_line(look: Look) -> Text:
    """The open round, or the last one."""
    current, asked = look.current, look.run.rounds_asked
    if current is None:
        return Text("no round yet: devices join, artifacts are exported")
    number = current.round + 1
    what = "final scores" if current.round >= asked else f"round {number} of {asked}"
    text = Text.assemble((what, "bold"))
    if current.attempt:
        text.append(f", attempt {current.attempt + 1}", style="yellow")
    text.append(f"  {current.state}  {_answers(current)}")
    if look.deadline_left_s and current.state in ("published", "collecting"):
        text.append(f"  {look.deadline_left_s:.0f} s left", style="yellow" if look.deadline_left_s < 10 else "")
    return text


def _answers(entry: RoundRecord) -> str:
    total = sum(entry.assigned.values())
    parts = [f"{entry.assigned.get('reported', 0)} of {total} reported"]
    parts += [f"{entry.assigned[s]} {s}" for s in ("refused", "rejected", "expired") if entry.assigned.get(s)]
    return ", ".join(parts) + (f", {entry.quarantined} set aside" if entry.quarantined else "")


def progress_line(look: Look) -> Text:
    """Score and loss so far, with a small curve, and what was sent."""
    losses = [entry.loss for entry in look.committed if entry.loss is not None and math.isfinite(entry.loss)]
    scores = [(entry.round, _score(entry)) for entry in look.committed if _score(entry)]
    sent = sum(entry.bytes_up + entry.bytes_down for entry in look.committed)
    parts = []
    if scores:
        number, (name, value) = scores[-1][0], scores[-1][1] or ("", 0.0)
        parts.append(f"{name} {value:.4f} after round {number + 1}")
    if losses:
        parts.append(f"loss {spark(losses)} {losses[-1]:.4f}")
    if sent:
        parts.append(f"sent {size(sent)}")
    return Text("   ".join(parts) or "nothing measured yet")


def _score(entry: RoundRecord) -> tuple[str, float] | None:
    found = entry.scores.get("server", {})
    name = "accuracy" if "accuracy" in found else next(iter(found), "")
    return (name, found[name]) if name else None


def spark(values: Sequence[float], width: int = 20) -> str:
    """The newest ``width`` values as a curve of one line."""
    shown = values[-width:]
    low, high = min(shown), max(shown)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in shown)


def fleet_line(look: Look, shown: int) -> Text:
    """How many devices do what, and how many of them the table has."""
    counts = Counter("not asked" if view.status == "unasked" else view.status for view in look.devices)
    words = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    text = Text(f"{len(look.devices):,} devices: {words or 'none yet'}")
    if shown != len(look.devices):
        text.append(f"   showing {shown:,}", style="bold yellow")
    return text


def event_line(event: LedgerEvent) -> Text:
    """An entry of the audit log."""
    clock = time.strftime("%H:%M:%S", time.localtime(event.at))
    trouble = any(word in event.action for word in ("fail", "refus", "reject", "quarantine", "revoke", "expired"))
    details = ", ".join(f"{key} {str(value)[:60]}" for key, value in event.details.items() if key != "weights")
    subject = event.subject or event.actor
    who = "" if event.actor.startswith("coordinator:") or event.actor == subject else f"  by {event.actor}"
    if subject.startswith("round:"):
        index, _, attempt = subject.removeprefix("round:").partition(".")
        subject = f"round {int(index) + 1}" + (f", attempt {int(attempt) + 1}" if attempt not in ("", "0") else "")
    text = Text.assemble((f"{clock}  ", "dim"))
    text.append(event.action.replace("-", " "), style="red" if trouble else "")
    shown = "" if subject.startswith("run:") else subject.removeprefix("device:")
    text.append(f"  {shown}{who}  ")
    text.append(details, style="dim")
    return text

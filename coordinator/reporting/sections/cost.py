"""What the run cost: bytes, seconds of devices and of the coordinator, energy where somebody measured it."""

from __future__ import annotations

from coordinator.reporting.markup import duration, paragraph, size, table
from coordinator.reporting.subject import Subject


def cost(subject: Subject) -> str:
    """A table of totals."""
    if not subject.rounds:
        return ""
    rows = [
        ("weights and artifacts sent to devices", size(subject.bytes_down)),
        ("updates sent by devices", size(subject.bytes_up)),
    ]
    if subject.wire_bytes:
        rows.append(("on the wire, headers and repeats included", size(sum(subject.wire_bytes.values()))))
    if subject.trained_s is not None:
        rows.append(("devices at work, all of them together", duration(subject.trained_s)))
    if subject.cpu_s is not None:
        rows.append(("processor time of the devices' trainings", duration(subject.cpu_s)))
        rows.append(("the same in a round", duration(subject.cpu_s / len(subject.rounds))))
        if points := _points(subject):
            rows.append((f"the same for each point of accuracy, of {points:.1f}", duration(subject.cpu_s / points)))
    if subject.joules is not None:
        rows.append(("energy of the boards that count theirs", f"{subject.joules:,.0f} J"))
    simulated = sum(r.simulated_s or 0.0 for r in subject.rounds)
    if simulated:
        rows.append(("the rounds on simulated devices, by the device model", duration(simulated)))
    rows.append(
        ("coordinator at work, start to end" if subject.is_finished else "rounds so far", duration(subject.wall_s))
    )
    exports = subject.summary.get("exports")
    if exports is not None:
        rows.append(("artifacts exported and checked against torch", str(exports)))
    missing = "Energy is not in this table: no device counts it."
    note = paragraph(missing, kind="what") if subject.joules is None else ""
    return table(("what", "how much"), rows) + note


def _points(subject: Subject) -> float:
    """Percentage points of the global model's last accuracy; 0 where it has none."""
    for entry in reversed(subject.rounds):
        accuracy = entry.scores.get("server", {}).get("accuracy")
        if accuracy is not None:
            return 100.0 * accuracy
    return 0.0

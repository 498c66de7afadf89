"""Assignments, from the ledger: what a device was asked for in a round, when, and whether it counted."""

from __future__ import annotations

from typing import Any

import msgspec

from coordinator.history.records import AssignmentRecord
from coordinator.ledger.read_only import ReadOnlyLedger

_SELECT = (
    "SELECT a.assignment_id, a.device, a.round, a.attempt, a.level, a.form, a.state, a.code, a.reason, a.work_order, "
    "a.planned_at, r.published_at, a.accepted_at, a.answered_at, u.report, c.round, c.weight, q.code, q.evidence, "
    "r.state FROM assignments a JOIN rounds r ON r.round = a.round AND r.attempt = a.attempt "
    "LEFT JOIN updates u ON u.assignment_id = a.assignment_id "
    "LEFT JOIN contributions c ON c.assignment_id = a.assignment_id "
    "LEFT JOIN quarantine q ON q.assignment_id = a.assignment_id "
)


class Order(msgspec.Struct):
    """What is read of a work order."""

    peak_bytes: int = 0
    threads: int = 1
    upload: tuple[str, ...] = ()


class _Report(msgspec.Struct):
    num_examples: int = 0
    steps: int = 0
    loss: float | None = None
    step_ms_p50: float = 0.0
    trainer_peak_bytes: int = 0
    supervisor_peak_bytes: int = 0
    budget_bytes: int = 0
    over_budget: bool = False
    runtime: str = ""
    bytes_down: int = 0
    bytes_up: int = 0
    wall_s: float = 0.0
    cpu_s: float | None = None
    joules: float | None = None
    temperature_c: float | None = None
    battery_percent: float | None = None


def read_parts(order: bytes) -> Order:
    """Those parts of a work order that are shown; one that cannot be read has none."""
    try:
        return msgspec.msgpack.decode(order, type=Order)
    except msgspec.MsgspecError:
        return Order()


def assignments_of_round(
    ledger: ReadOnlyLedger, round_index: int, attempt: int, after: str, limit: int
) -> tuple[AssignmentRecord, ...]:
    """Those of an attempt, by device, behind ``after``."""
    rows = ledger.all(
        f"{_SELECT} WHERE a.round = :round AND a.attempt = :attempt AND a.device > :after "
        "ORDER BY a.device LIMIT :limit",
        {"round": round_index, "attempt": attempt, "after": after, "limit": limit},
    )
    return tuple(_record(row) for row in rows)


def assignments_of_device(
    ledger: ReadOnlyLedger, device: str, before_round: int | None, limit: int
) -> tuple[AssignmentRecord, ...]:
    """Those of a device, the newest first."""
    earlier, values = "", {"device": device, "limit": limit}
    if before_round is not None:
        earlier, values = "AND a.round < :before ", {**values, "before": before_round}
    rows = ledger.all(
        f"{_SELECT} WHERE a.device = :device {earlier}ORDER BY a.round DESC, a.attempt DESC LIMIT :limit", values
    )
    return tuple(_record(row) for row in rows)


def _record(row: Any) -> AssignmentRecord:
    order = read_parts(row[9])
    report = None if row[14] is None else msgspec.json.decode(row[14], type=_Report)
    planned_at, sent_at, accepted_at, answered_at = (time or None for time in row[10:14])
    told: dict[str, Any] = {}
    if report is not None:
        told = {
            "measured_peak_bytes": report.trainer_peak_bytes + report.supervisor_peak_bytes,
            "budget_bytes": report.budget_bytes,
            "is_over_budget": report.over_budget,
            "trained_s": report.wall_s,
            "cpu_s": report.cpu_s,
            "joules": report.joules,
            "num_examples": report.num_examples,
            "steps": report.steps,
            "step_ms": report.step_ms_p50 or None,
            "loss": report.loss,
            "bytes_up": report.bytes_up,
            "bytes_down": report.bytes_down,
            "temperature_c": report.temperature_c,
            "battery_percent": report.battery_percent,
            "runtime": report.runtime,
        }
    return AssignmentRecord(
        assignment_id=row[0],
        device=row[1],
        round=row[2],
        attempt=row[3],
        level=row[4],
        form=row[5],
        state=row[6],
        code=row[7],
        reason=row[8],
        planned_at=planned_at,
        sent_at=sent_at,
        accepted_at=accepted_at,
        answered_at=answered_at,
        predicted_peak_bytes=order.peak_bytes,
        counted_in=row[15],
        weight=row[16],
        quarantine=row[17] or "",
        evidence={} if row[18] is None else msgspec.json.decode(row[18]),
        round_state=row[19],
        **told,
    )

"""What devices measured in a run, in the ledger: the memory and time of steps, and work that took too much."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection

from coordinator.ledger.database import LedgerPart, statement
from coordinator.ledger.records import Measurement, Setback, from_row

_LARGEST = 1 << 50
"""Bytes; a device says what it likes, a column holds 64 bits."""


class Measurements(LedgerPart):
    """Of each device and step."""

    def add(self, measurement: Measurement) -> None:
        """Records a measurement; for the same step of the same device the largest peak and the latest time stay."""
        with self._file.transaction() as sql:
            sql.execute(
                statement(
                    "INSERT INTO measurements VALUES "
                    "(:device, :export_key, :batch, :predicted_peak_bytes, :measured_peak_bytes, :step_ms) "
                    "ON CONFLICT (device, export_key, batch) DO UPDATE "
                    "SET predicted_peak = excluded.predicted_peak, step_ms = excluded.step_ms, "
                    "measured_peak = CASE WHEN measurements.measured_peak > excluded.measured_peak "
                    "THEN measurements.measured_peak ELSE excluded.measured_peak END"
                ),
                msgspec.structs.asdict(measurement),
            )

    def all(self) -> tuple[Measurement, ...]:
        """Every measurement, ordered by device, export key and batch."""
        rows = self._file.all(
            "SELECT device, export_key, batch, predicted_peak, measured_peak, step_ms FROM measurements "
            "ORDER BY device, export_key, batch"
        )
        return tuple(from_row(Measurement, row) for row in rows)

    def setbacks(self) -> tuple[Setback, ...]:
        """Every setback, in the order of rounds, attempts and devices."""
        rows = self._file.all(
            "SELECT s.assignment_id, a.device, a.round, a.level, a.artifact_digest, s.code, s.peak, s.memory_limit "
            "FROM setbacks s JOIN assignments a USING (assignment_id) ORDER BY a.round, a.attempt, a.device"
        )
        return tuple(from_row(Setback, row) for row in rows)


def insert_setback(sql: Connection, assignment_id: str, code: str, peak_bytes: int, limit_bytes: int) -> None:
    """Records a setback inside the caller's transaction; sizes that no memory has are cut."""
    peak, limit = (min(max(0, size), _LARGEST) for size in (peak_bytes, limit_bytes))
    sql.execute(
        statement("INSERT INTO setbacks VALUES (:id, :code, :peak, :limit)"),
        {"id": assignment_id, "code": code, "peak": peak, "limit": limit},
    )

"""Updates in the ledger: recorded once, counted once, and which of them wait to be."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection

from coordinator.ledger.assignments import COLUMNS, move_assignment
from coordinator.ledger.blobs import insert_blob
from coordinator.ledger.database import LedgerPart, statement
from coordinator.ledger.measurements import insert_setback
from coordinator.ledger.records import OVER_BUDGET, Contribution, RecordedUpdate, assignment_from_row
from edge.contracts.codec import encode_json
from edge.contracts.report import TrainReport

_SELECT = f"SELECT {COLUMNS}, u.update_digest, u.report FROM updates u JOIN assignments a USING (assignment_id) "


class Updates(LedgerPart):
    """What came back and is on disk."""

    def record(self, assignment_id: str, *, update_digest: str, size: int, report: TrainReport) -> bool:
        """Records an update: its blob's row, its report and the assignment's state in one transaction.

        Call it after the blob is in the store and before the acknowledgement.

        Returns:
            False when this assignment's update is recorded already; nothing changes, it counts once.

        Raises:
            LedgerError: unknown assignment, or one that can no longer report (expired, refused, rejected).
        """
        with self._file.transaction() as sql:
            return _record(sql, assignment_id, update_digest, size, report)

    def record_all(self, reports: Sequence[TrainReport]) -> None:
        """Records the updates of ``reports``, which are in no store, in one transaction; else as :meth:`record`."""
        with self._file.transaction() as sql:
            for report in reports:
                digest = hashlib.sha256(report.assignment_id.encode()).hexdigest()
                _record(sql, report.assignment_id, digest, 0, report)

    def of_attempt(self, round_index: int, attempt: int) -> tuple[RecordedUpdate, ...]:
        """The recorded updates of an attempt in device-id order, the order they are summed in."""
        return _recorded(
            self._file.all(
                f"{_SELECT} WHERE a.round = :round AND a.attempt = :attempt ORDER BY a.device",
                {"round": round_index, "attempt": attempt},
            )
        )

    def reporters(self, since_round: int, *, before: int) -> frozenset[str]:
        """Devices with a recorded update of round ``since_round`` or later, and of one before round ``before``."""
        rows = self._file.all(
            "SELECT DISTINCT device FROM assignments WHERE state = 'reported' AND round >= :since AND round < :before",
            {"since": since_round, "before": before},
        )
        return frozenset(row[0] for row in rows)

    def devices(self, round_index: int, attempt: int) -> tuple[str, ...]:
        """Devices whose update of an attempt is recorded, by id, and nothing else of it."""
        rows = self._file.all(
            "SELECT a.device FROM assignments a JOIN updates u USING (assignment_id) "
            "WHERE a.round = :round AND a.attempt = :attempt ORDER BY a.device",
            {"round": round_index, "attempt": attempt},
        )
        return tuple(str(device) for (device,) in rows)

    def counted(self, round_index: int, attempt: int) -> tuple[RecordedUpdate, ...]:
        """The updates an attempt counts, of whichever round, in device-id and then round order: that of the sum."""
        return _recorded(
            self._file.all(
                f"{_SELECT} JOIN contributions c USING (assignment_id) "
                "WHERE c.round = :round AND c.attempt = :attempt ORDER BY a.device, a.round, a.attempt",
                {"round": round_index, "attempt": attempt},
            )
        )

    def last_counted(self) -> dict[str, str]:
        """Device -> assignment id of its newest update that a committed round counts."""
        rows = self._file.all(
            "SELECT a.device, c.assignment_id FROM contributions c JOIN assignments a USING (assignment_id) "
            "JOIN rounds r ON r.round = c.round AND r.attempt = c.attempt "
            "WHERE r.state = 'committed' ORDER BY a.round, a.attempt"
        )
        return dict((str(device), str(assignment)) for device, assignment in rows)

    def weights(self, round_index: int, attempt: int) -> tuple[Contribution, ...]:
        """What each of :meth:`counted` weighs, in their order."""
        rows = self._file.all(
            "SELECT c.assignment_id, c.weight FROM contributions c JOIN assignments a USING (assignment_id) "
            "WHERE c.round = :round AND c.attempt = :attempt ORDER BY a.device, a.round, a.attempt",
            {"round": round_index, "attempt": attempt},
        )
        return tuple(Contribution(assignment_id=key, weight=weight) for key, weight in rows)

    def waiting_count(self) -> int:
        """How many :meth:`waiting` there are."""
        return int(self._file.one("SELECT COUNT(*) FROM updates WHERE waits = 1")[0])

    def waiting(self) -> tuple[RecordedUpdate, ...]:
        """Updates that a round may still count, in the order of rounds, attempts and devices.

        Neither counted nor quarantined, and their attempt was not abandoned.
        """
        # The signs keep SQLite from reading every assignment in this order to find the few that wait.
        return _recorded(self._file.all(f"{_SELECT} WHERE u.waits = 1 ORDER BY +a.round, +a.attempt, a.device"))


def _record(sql: Connection, assignment_id: str, update_digest: str, size: int, report: TrainReport) -> bool:
    if not move_assignment(sql, assignment_id, "reported"):
        return False
    insert_blob(sql, update_digest, size)
    sql.execute(
        statement("INSERT INTO updates (assignment_id, update_digest, report) VALUES (:id, :digest, :report)"),
        {"id": assignment_id, "digest": update_digest, "report": encode_json(report)},
    )
    if report.over_budget:
        peak = report.supervisor_peak_bytes + report.trainer_peak_bytes
        insert_setback(sql, assignment_id, OVER_BUDGET, peak, report.budget_bytes)
    return True


def _recorded(rows: Sequence[Any]) -> tuple[RecordedUpdate, ...]:
    return tuple(
        RecordedUpdate(
            assignment=assignment_from_row(row[:-2]),
            update_digest=row[-2],
            report=msgspec.json.decode(row[-1], type=TrainReport),
        )
        for row in rows
    )

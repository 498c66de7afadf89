"""The ledger: the only truth about a run, in one SQLite file that survives a kill at any instruction.

Every method is one transaction (WAL, ``synchronous=FULL``): it has happened on disk when it returns, or not at all.
Bytes live in :mod:`coordinator.blob_store`; a blob is on disk before its row is written here, and a row before anyone
is told. Deciding what to do next is :mod:`coordinator.round`'s.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from coordinator.inventory import Inventory, insert_blob, insert_setback
from coordinator.ledger_file import LedgerFile
from coordinator.ledger_records import (
    ASSIGNMENT_MOVES,
    FEDERATION_MOVES,
    OVER_BUDGET,
    ROUND_MOVES,
    SETBACK_CODES,
    Assignment,
    AssignmentState,
    Federation,
    FederationState,
    RecordedUpdate,
    Round,
    RoundState,
    assignment_from_row,
    check_move,
    round_from_row,
)
from edge.contracts.codec import encode_json
from edge.contracts.errors import DeadlineExpired, LedgerError
from edge.contracts.report import TrainReport

ASSIGNMENT_COLUMNS = (
    "a.assignment_id, a.round, a.attempt, a.device, a.level, a.cut, a.artifact_digest, a.weights_digest, "
    "a.work_order, a.state, a.code, a.reason, a.form"
)
ROUND_COLUMNS = "round, attempt, state, deadline_s, participants, model_digest, metrics"


class Ledger(Inventory):
    """One run's ledger: the inventory's tables and those of its rounds; one connection, shared by threads.

    Use :meth:`create` for a new run and :meth:`open` for one that exists.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(LedgerFile(path))
        self.path = path

    @classmethod
    def create(cls, path: Path, *, federation: str, config: str, seed: int) -> Ledger:
        """A ledger for a new run.

        Raises:
            LedgerError: there is a run at ``path`` already.
        """
        ledger = cls(path)
        with ledger._file.transaction() as sql:
            if sql.execute("SELECT 1 FROM federation").fetchone():
                raise LedgerError(f"{path}: there is a run here already; resume it or choose another directory")
            digest = hashlib.sha256(config.encode()).hexdigest()
            sql.execute(
                "INSERT INTO federation VALUES (?, ?, ?, ?, ?, 'new')", (federation, config, digest, seed, time.time())
            )
        return ledger

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """The ledger of an existing run.

        Raises:
            LedgerError: none there, or none that this release reads.
        """
        if not path.is_file():
            raise LedgerError(f"{path}: no ledger here; give the directory of a run")
        ledger = cls(path)
        ledger.federation()
        return ledger

    def close(self) -> None:
        """Closes the file; the ledger cannot be used afterwards."""
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def federation(self) -> Federation:
        """The run this ledger belongs to."""
        row = self._file.one("SELECT id, config, config_digest, seed, created_at, state FROM federation")
        if row is None:
            raise LedgerError(f"{self.path}: ledger holds no run; start one")
        return Federation(id=row[0], config=row[1], config_digest=row[2], seed=row[3], created_at=row[4], state=row[5])

    def move_federation(self, to: FederationState) -> None:
        """Moves the run to state ``to``."""
        with self._file.transaction() as sql:
            (now,) = sql.execute("SELECT state FROM federation").fetchone()
            check_move(FEDERATION_MOVES, now, to, what=f"{self.path}: run")
            sql.execute("UPDATE federation SET state = ?", (to,))

    def plan_round(
        self, round_index: int, attempt: int, *, deadline_s: float, assignments: Sequence[Assignment]
    ) -> None:
        """Writes an attempt at a round and all its assignments, together or not at all.

        Raises:
            LedgerError: the attempt exists, another one is still open, or an assignment belongs elsewhere.
        """
        with self._file.transaction() as sql:
            still = sql.execute(
                f"SELECT {ROUND_COLUMNS} FROM rounds WHERE state NOT IN ('committed', 'abandoned')"
            ).fetchone()
            if still:
                raise LedgerError(f"round {still[0]}, attempt {still[1]} is {still[2]}; finish it before the next plan")
            sql.execute(
                "INSERT INTO rounds VALUES (?, ?, 'planned', ?, ?, '', ?)",
                (round_index, attempt, deadline_s, encode_json([]), encode_json({})),
            )
            for entry in assignments:
                if (entry.round, entry.attempt, entry.state) != (round_index, attempt, "open"):
                    raise LedgerError(
                        f"assignment of {entry.device} is {entry.state} in round {entry.round}.{entry.attempt}, "
                        f"an open one of round {round_index}.{attempt} expected; plan again"
                    )
                row = (
                    entry.assignment_id, entry.round, entry.attempt, entry.device, entry.level, encode_json(entry.cut),
                    entry.artifact_digest, entry.weights_digest, entry.order, entry.state, entry.code, entry.reason,
                    entry.form,
                )  # fmt: skip
                sql.execute(f"INSERT INTO assignments VALUES ({', '.join('?' * len(row))})", row)

    def move_round(
        self,
        round_index: int,
        attempt: int,
        to: RoundState,
        *,
        participants: Iterable[str] = (),
        model_digest: str = "",
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """Moves an attempt to state ``to``, with what that state needs.

        Args:
            participants: for ``aggregating``: devices whose recorded updates are summed.
            model_digest: for ``committed``: the blob of the new model, already known to the ledger.
            metrics: for ``committed``.

        Raises:
            LedgerError: an illegal move, a participant without an update, a model without a blob; nothing changes.
        """
        what = f"round {round_index}, attempt {attempt}"
        chosen = sorted(participants)
        with self._file.transaction() as sql:
            row = sql.execute(
                "SELECT state FROM rounds WHERE round = ? AND attempt = ?", (round_index, attempt)
            ).fetchone()
            if row is None:
                raise LedgerError(f"{what} is not in the ledger; plan it first")
            check_move(ROUND_MOVES, row[0], to, what=what)
            if to == "aggregating":
                rows = sql.execute(
                    "SELECT a.device FROM updates u JOIN assignments a USING (assignment_id) "
                    "WHERE a.round = ? AND a.attempt = ?",
                    (round_index, attempt),
                )
                without = sorted(set(chosen) - {device for (device,) in rows})
                if without or not chosen:
                    raise LedgerError(
                        f"{what}: {len(chosen)} participants, no update from {without[:5]}; collect first"
                    )
                sql.execute(
                    "UPDATE rounds SET participants = ? WHERE round = ? AND attempt = ?",
                    (encode_json(chosen), round_index, attempt),
                )
            if to == "committed":
                if not sql.execute("SELECT 1 FROM blobs WHERE digest = ?", (model_digest,)).fetchone():
                    raise LedgerError(f"{what}: model blob {model_digest[:12]!r} has no row; store and add it first")
                sql.execute(
                    "UPDATE rounds SET model_digest = ?, metrics = ? WHERE round = ? AND attempt = ?",
                    (model_digest, encode_json(dict(metrics or {})), round_index, attempt),
                )
            sql.execute("UPDATE rounds SET state = ? WHERE round = ? AND attempt = ?", (to, round_index, attempt))

    def set_deadline(self, round_index: int, attempt: int, remaining_s: float) -> None:
        """Stores the seconds an attempt has left, so that a restart goes on with them."""
        with self._file.transaction() as sql:
            sql.execute(
                "UPDATE rounds SET deadline_s = ? WHERE round = ? AND attempt = ?", (remaining_s, round_index, attempt)
            )

    def rounds(self) -> tuple[Round, ...]:
        """Every attempt at every round, in order."""
        return tuple(
            round_from_row(row) for row in self._file.all(f"SELECT {ROUND_COLUMNS} FROM rounds ORDER BY round, attempt")
        )

    def open_round(self) -> Round | None:
        """The attempt that is neither committed nor abandoned; there is at most one."""
        row = self._file.one(f"SELECT {ROUND_COLUMNS} FROM rounds WHERE state NOT IN ('committed', 'abandoned')")
        return None if row is None else round_from_row(row)

    def last_committed(self) -> Round | None:
        """The newest committed round, whose ``model_digest`` is the current global model."""
        row = self._file.one(
            f"SELECT {ROUND_COLUMNS} FROM rounds WHERE state = 'committed' ORDER BY round DESC LIMIT 1"
        )
        return None if row is None else round_from_row(row)

    def assignment(self, assignment_id: str) -> Assignment | None:
        """The assignment, or None when this run never made it."""
        row = self._file.one(
            f"SELECT {ASSIGNMENT_COLUMNS} FROM assignments a WHERE assignment_id = ?", (assignment_id,)
        )
        return None if row is None else assignment_from_row(row)

    def assignments(self, round_index: int, attempt: int, *states: AssignmentState) -> tuple[Assignment, ...]:
        """Assignments of an attempt in device-id order, all of them or those in one of ``states``."""
        rows = self._file.all(
            f"SELECT {ASSIGNMENT_COLUMNS} FROM assignments a WHERE round = ? AND attempt = ? ORDER BY device",
            (round_index, attempt),
        )
        found = (assignment_from_row(row) for row in rows)
        return tuple(entry for entry in found if not states or entry.state in states)

    def latest_assignment(self, device: str) -> Assignment | None:
        """The newest assignment of a device, or None when it never had one."""
        newest = "ORDER BY round DESC, attempt DESC LIMIT 1"
        row = self._file.one(f"SELECT {ASSIGNMENT_COLUMNS} FROM assignments a WHERE device = ? {newest}", (device,))
        return None if row is None else assignment_from_row(row)

    def move_assignment(
        self,
        assignment_id: str,
        to: AssignmentState,
        *,
        code: str = "",
        reason: str = "",
        peak_bytes: int = 0,
        limit_bytes: int = 0,
    ) -> bool:
        """Moves an assignment; False (and nothing changes) when it is in state ``to`` already.

        A refusal with a code of ``SETBACK_CODES`` is a setback of its device.

        Args:
            peak_bytes, limit_bytes: of a setback, as :class:`~coordinator.ledger_records.Setback`.

        Raises:
            LedgerError: unknown assignment or illegal move; ``reported`` is reached by :meth:`record_update` only.
        """
        with self._file.transaction() as sql:
            now = self._assignment_state(sql, assignment_id)
            if now == to:
                return False
            if to == "reported":
                raise LedgerError(f"assignment {assignment_id[:12]}: only a recorded update makes it 'reported'")
            check_move(ASSIGNMENT_MOVES, now, to, what=f"assignment {assignment_id[:12]}")
            sql.execute(
                "UPDATE assignments SET state = ?, code = ?, reason = ? WHERE assignment_id = ?",
                (to, code, reason, assignment_id),
            )
            if to == "refused" and code in SETBACK_CODES:
                insert_setback(sql, assignment_id, code, peak_bytes, limit_bytes)
            return True

    def expire(self, assignment_id: str) -> bool:
        """Gives an assignment up at the deadline; False when it was answered at the last moment."""
        with self._file.transaction() as sql:
            if "expired" not in ASSIGNMENT_MOVES[self._assignment_state(sql, assignment_id)]:
                return False
            sql.execute(
                "UPDATE assignments SET state = 'expired', code = ?, reason = ? WHERE assignment_id = ?",
                (DeadlineExpired.code, "no report before the deadline", assignment_id),
            )
            return True

    def record_update(self, assignment_id: str, *, update_digest: str, size: int, report: TrainReport) -> bool:
        """Counts an update: its blob's row, its report and the assignment's state in one transaction.

        Call it after the blob is in the store and before the acknowledgement.

        Returns:
            False when this assignment's update is recorded already; nothing changes, it counts once.

        Raises:
            LedgerError: unknown assignment, or one that can no longer report (expired, refused, rejected).
        """
        with self._file.transaction() as sql:
            now = self._assignment_state(sql, assignment_id)
            if now == "reported":
                return False
            check_move(ASSIGNMENT_MOVES, now, "reported", what=f"assignment {assignment_id[:12]}")
            insert_blob(sql, update_digest, size)
            sql.execute("INSERT INTO updates VALUES (?, ?, ?)", (assignment_id, update_digest, encode_json(report)))
            sql.execute("UPDATE assignments SET state = 'reported' WHERE assignment_id = ?", (assignment_id,))
            if report.over_budget:
                peak = report.supervisor_peak_bytes + report.trainer_peak_bytes
                insert_setback(sql, assignment_id, OVER_BUDGET, peak, report.budget_bytes)
            return True

    def updates(self, round_index: int, attempt: int) -> tuple[RecordedUpdate, ...]:
        """The recorded updates of an attempt in device-id order, the order they are summed in."""
        rows = self._file.all(
            f"SELECT {ASSIGNMENT_COLUMNS}, u.update_digest, u.report "
            "FROM assignments a JOIN updates u USING (assignment_id) "
            "WHERE a.round = ? AND a.attempt = ? ORDER BY a.device",
            (round_index, attempt),
        )
        return tuple(
            RecordedUpdate(
                assignment=assignment_from_row(row[:-2]),
                update_digest=row[-2],
                report=msgspec.json.decode(row[-1], type=TrainReport),
            )
            for row in rows
        )

    @staticmethod
    def _assignment_state(sql: sqlite3.Connection, assignment_id: str) -> str:
        row = sql.execute("SELECT state FROM assignments WHERE assignment_id = ?", (assignment_id,)).fetchone()
        if row is None:
            raise LedgerError(f"assignment {assignment_id[:12]!r} is not of this run; tell the device to forget it")
        return str(row[0])

"""Assignments in the ledger: the work of one device in one attempt at one round, and where it stands."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection

from coordinator.audit_log import actors
from coordinator.audit_log.entry import Event
from coordinator.ledger.audit_log import append, naming
from coordinator.ledger.database import LedgerFile, LedgerPart, in_groups, statement, storable
from coordinator.ledger.measurements import insert_setback
from coordinator.ledger.records import (
    ASSIGNMENT_MOVES,
    SETBACK_CODES,
    Assignment,
    AssignmentState,
    assignment_from_row,
    check_move,
)
from edge.contracts.codec import encode_json
from edge.contracts.errors import DeadlineExpired, LedgerError

_NAMES = tuple("work_order" if name == "order" else name for name in Assignment.__struct_fields__)
COLUMNS = ", ".join(f"a.{name}" for name in _NAMES)
OPEN = "state IN ('open', 'accepted')"
"""As the tables' indexes say it; another wording of the same would not use them."""


class Assignments(LedgerPart):
    """What was handed out, and what became of it."""

    def __init__(self, file: LedgerFile) -> None:
        super().__init__(file)
        self._busy: tuple[int, frozenset[str]] = (-1, frozenset())

    def find(self, assignment_id: str) -> Assignment | None:
        """The assignment, or None when this run never made it."""
        row = self._file.one(f"SELECT {COLUMNS} FROM assignments a WHERE assignment_id = :id", {"id": assignment_id})
        return None if row is None else assignment_from_row(row)

    def of_attempt(self, round_index: int, attempt: int, *states: AssignmentState) -> tuple[Assignment, ...]:
        """Assignments of an attempt in device-id order, all of them or those in one of ``states``."""
        which, values = "", {"round": round_index, "attempt": attempt}
        if states:
            names = [f"state{number}" for number in range(len(states))]
            which = f"AND a.state IN ({', '.join(f':{name}' for name in names)}) "
            values |= dict(zip(names, states, strict=True))  # type: ignore[arg-type]
        rows = self._file.all(
            f"SELECT {COLUMNS} FROM assignments a WHERE round = :round AND attempt = :attempt {which}ORDER BY device",
            values,
        )
        return tuple(assignment_from_row(row) for row in rows)

    def open(self) -> tuple[Assignment, ...]:
        """Unanswered assignments of every round, in the order of rounds, attempts and devices."""
        rows = self._file.all(f"SELECT {COLUMNS} FROM assignments a WHERE {OPEN} ORDER BY round, attempt, device")
        return tuple(assignment_from_row(row) for row in rows)

    def published(self) -> dict[str, tuple[str, AssignmentState]]:
        """Unanswered assignments of attempts whose orders may be sent: id -> its device and state, and nothing else."""
        rows = self._file.all(
            "SELECT a.assignment_id, a.device, a.state FROM assignments a JOIN rounds r USING (round, attempt) "
            f"WHERE a.{OPEN} AND r.state IN ('published', 'collecting') ORDER BY a.device"
        )
        return {assignment_id: (device, state) for assignment_id, device, state in rows}

    def with_ids(self, assignment_ids: Sequence[str]) -> tuple[Assignment, ...]:
        """Those of the assignments that this run made, in device-id order."""
        query = statement(f"SELECT {COLUMNS} FROM assignments a WHERE assignment_id IN :ids", "ids")
        rows = [row for group in in_groups(assignment_ids) for row in self._file.all(query, {"ids": group})]
        return tuple(sorted((assignment_from_row(row) for row in rows), key=lambda entry: entry.device))

    def open_of(self, device: str) -> Assignment | None:
        """The newest unanswered assignment of a device, or None."""
        if self._is_idle(device):
            return None
        # The sign keeps SQLite from the index that has the order, in which it would read the device's whole past.
        newest = f"AND {OPEN} ORDER BY +round DESC, +attempt DESC LIMIT 1"
        row = self._file.one(f"SELECT {COLUMNS} FROM assignments a WHERE device = :device {newest}", {"device": device})
        return None if row is None else assignment_from_row(row)

    def _is_idle(self, device: str) -> bool:
        """Whether ``device`` is known to have nothing open: ten thousand may say hello at once, and few have work."""
        plans = self._file.plans
        if plans is None:
            return False
        if self._busy[0] != plans:
            rows = self._file.all(f"SELECT DISTINCT device FROM assignments a WHERE {OPEN}")
            self._busy = plans, frozenset(device for (device,) in rows)
        return device not in self._busy[1]

    def latest_of(self, device: str) -> Assignment | None:
        """The newest assignment of a device, or None when it never had one."""
        newest = "ORDER BY round DESC, attempt DESC LIMIT 1"
        row = self._file.one(f"SELECT {COLUMNS} FROM assignments a WHERE device = :device {newest}", {"device": device})
        return None if row is None else assignment_from_row(row)

    def newest_of(self, device: str, count: int) -> tuple[Assignment, ...]:
        """The ``count`` newest assignments of a device, the newest first."""
        rows = self._file.all(
            f"SELECT {COLUMNS} FROM assignments a WHERE device = :device "
            "ORDER BY round DESC, attempt DESC LIMIT :count",
            {"device": device, "count": count},
        )
        return tuple(assignment_from_row(row) for row in rows)

    def refused(self, codes: Sequence[str], since_round: int) -> list[tuple[str, int, int, str, str]]:
        """Assignments of round ``since_round`` or later that were refused with one of ``codes``.

        Returns:
            (Device, round, attempt, code, reason) in the order of rounds, attempts and devices.
        """
        query = statement(
            "SELECT device, round, attempt, code, reason FROM assignments WHERE state = 'refused' AND code IN :codes "
            "AND round >= :since ORDER BY round, attempt, device",
            "codes",
        )
        return [tuple(row) for row in self._file.all(query, {"codes": list(codes), "since": since_round})]

    def open_count(self, round_index: int, attempt: int) -> int:
        """How many assignments of an attempt are unanswered."""
        row = self._file.one(
            f"SELECT COUNT(*) FROM assignments WHERE round = :round AND attempt = :attempt AND {OPEN}",
            {"round": round_index, "attempt": attempt},
        )
        return int(row[0])

    def move(
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
            peak_bytes, limit_bytes: of a setback, as :class:`~coordinator.ledger.records.Setback`.

        Raises:
            LedgerError: unknown assignment or illegal move; ``reported`` is reached by a recorded update only.
        """
        with self._file.transaction() as sql:
            if not move_assignment(sql, assignment_id, to, code=code, reason=reason):
                return False
            if to == "reported":
                raise LedgerError(f"assignment {assignment_id[:12]}: only a recorded update makes it 'reported'")
            if to == "refused" and code in SETBACK_CODES:
                insert_setback(sql, assignment_id, code, peak_bytes, limit_bytes)
            if to in ("refused", "rejected"):
                append(sql, self._answered(sql, assignment_id, to, code, reason))
            return True

    def _answered(self, sql: Connection, assignment_id: str, to: AssignmentState, code: str, reason: str) -> Event:
        """That a device refused its order, or that its update was refused."""
        device, round_index, attempt = sql.execute(
            statement("SELECT device, round, attempt FROM assignments WHERE assignment_id = :id"), {"id": assignment_id}
        ).one()
        here = {"round": round_index, "attempt": attempt, "assignment_id": assignment_id}
        if to == "rejected":
            return naming(self._file.actor, device, code, reason, **here)
        who = actors.device(device)
        details = {**here, "code": code, "why": reason}
        return Event(actor=who, action="order-refused", subject=f"round:{round_index}.{attempt}", details=details)

    def accept(self, assignment_ids: Sequence[str]) -> None:
        """Moves those of the assignments that are open to ``accepted``, together."""
        now = time.time()
        with self._file.transaction() as sql:
            sql.execute(
                statement(
                    "UPDATE assignments SET state = 'accepted', accepted_at = :now "
                    "WHERE assignment_id = :id AND state = 'open'"
                ),
                [{"id": assignment_id, "now": now} for assignment_id in assignment_ids],
            )

    def expire(self, assignment_id: str) -> bool:
        """Gives an assignment up at the deadline; False when it was answered at the last moment."""
        with self._file.transaction() as sql:
            if _update(sql, assignment_id, "expired", DeadlineExpired.code, "no report before the deadline"):
                return True
            _state(sql, assignment_id)  # raises for one that is unknown
            return False


def move_assignment(
    sql: Connection, assignment_id: str, to: AssignmentState, *, code: str = "", reason: str = ""
) -> bool:
    """Moves an assignment inside the caller's transaction; False when it is in state ``to`` already.

    Raises:
        LedgerError: this run never made it, or the move is illegal.
    """
    if _update(sql, assignment_id, to, code, reason):
        return True
    now = _state(sql, assignment_id)
    if now != to:
        check_move(ASSIGNMENT_MOVES, now, to, what=f"assignment {assignment_id[:12]}")
    return False


def _state(sql: Connection, assignment_id: str) -> str:
    state = sql.execute(
        statement("SELECT state FROM assignments WHERE assignment_id = :id"), {"id": assignment_id}
    ).scalar()
    if state is None:
        raise LedgerError(f"assignment {assignment_id[:12]!r} is not of this run; tell the device to forget it")
    return str(state)


def _update(sql: Connection, assignment_id: str, to: AssignmentState, code: str, reason: str) -> bool:
    """Whether the assignment was in a state that may become ``to``, and now is."""
    before = ", ".join(f"'{now}'" for now, then in ASSIGNMENT_MOVES.items() if to in then)
    if not before:
        return False
    time_of = "accepted_at" if to == "accepted" else "answered_at"
    done = sql.execute(
        statement(
            f"UPDATE assignments SET state = :to, code = :code, reason = :reason, {time_of} = :now "
            f"WHERE assignment_id = :id AND state IN ({before})"
        ),
        {"to": to, "code": storable(code), "reason": storable(reason), "now": time.time(), "id": assignment_id},
    )
    return done.rowcount == 1


def insert_assignments(sql: Connection, round_index: int, attempt: int, assignments: Sequence[Assignment]) -> None:
    """Writes open assignments of an attempt inside the caller's transaction.

    Raises:
        LedgerError: one is of another attempt, or not open.
    """
    rows, now = [], time.time()
    for entry in assignments:
        if (entry.round, entry.attempt, entry.state) != (round_index, attempt, "open"):
            raise LedgerError(
                f"assignment of {entry.device} is {entry.state} in round {entry.round}.{entry.attempt}, "
                f"an open one of round {round_index}.{attempt} expected; plan again"
            )
        rows.append({**msgspec.structs.asdict(entry), "cut": encode_json(entry.cut), "now": now})
    if rows:
        places = ", ".join(f":{name}" for name in (*Assignment.__struct_fields__, "now"))
        sql.execute(statement(f"INSERT INTO assignments ({', '.join(_NAMES)}, planned_at) VALUES ({places})"), rows)

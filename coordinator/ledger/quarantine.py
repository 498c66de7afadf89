"""How devices behave, in the ledger: updates that are kept out of every sum, and where each device stands.

What deserves either is :mod:`coordinator.defences`'.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection

from coordinator.audit_log import actors
from coordinator.audit_log.entry import Event
from coordinator.ledger.audit_log import append
from coordinator.ledger.database import LedgerPart, statement
from coordinator.ledger.records import from_row
from edge.contracts.codec import encode_json
from edge.contracts.errors import DeadlineExpired, LedgerError


class Quarantined(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded update that no round may count; ``evidence`` is why, as JSON values."""

    assignment_id: str
    device: str
    round: int
    code: str
    evidence: dict[str, Any]
    created_at: float


class Reliability(msgspec.Struct, frozen=True, kw_only=True):
    """What is thought of a device.

    Attributes:
        accepted, rejected, quarantined: its updates so far.
        barred_until: index of the first round it may take part in again; -1 when it is not barred.
        changed_at: seconds since the epoch.
    """

    device: str
    score: float
    accepted: int = 0
    rejected: int = 0
    quarantined: int = 0
    barred_until: int = -1
    changed_at: float = 0.0


class Quarantine(LedgerPart):
    """Updates that are kept out."""

    def add(self, assignment_id: str, *, code: str, evidence: Mapping[str, Any]) -> bool:
        """Keeps an update out of every sum; False (and nothing changes) when it is kept out already.

        Raises:
            LedgerError: no update of that assignment, or a round has counted it.
        """
        with self._file.transaction() as sql:
            row = sql.execute(
                statement(
                    "SELECT a.device, a.round, c.round, q.code FROM updates u JOIN assignments a USING (assignment_id) "
                    "LEFT JOIN contributions c USING (assignment_id) LEFT JOIN quarantine q USING (assignment_id) "
                    "WHERE u.assignment_id = :id"
                ),
                {"id": assignment_id},
            ).first()
            if row is None:
                raise LedgerError(f"assignment {assignment_id[:12]} has no update to quarantine; record it first")
            device, of_round, counted_in, kept_out = row
            if counted_in is not None:
                raise LedgerError(
                    f"the update of {device} in round {of_round} was counted in round {counted_in}; it is too late"
                )
            if kept_out is not None:
                return False
            self._insert(sql, assignment_id, device, of_round, code, evidence)
            return True

    def _insert(
        self, sql: Connection, assignment_id: str, device: str, of_round: int, code: str, evidence: Mapping[str, Any]
    ) -> None:
        sql.execute(
            statement("INSERT INTO quarantine VALUES (:id, :device, :round, :code, :evidence, :now)"),
            {
                "id": assignment_id,
                "device": device,
                "round": of_round,
                "code": code,
                "evidence": encode_json(dict(evidence)),
                "now": time.time(),
            },
        )
        sql.execute(statement("UPDATE updates SET waits = 0 WHERE assignment_id = :id"), {"id": assignment_id})
        details = {**evidence, "code": code, "round": of_round, "assignment_id": assignment_id}
        append(sql, self._event("update-quarantined", device, details))

    def _event(self, action: str, device: str, details: Mapping[str, Any]) -> Event:
        return Event(actor=self._file.actor, action=action, subject=actors.device(device), details=details)

    def take_out(
        self, assignment_id: str, round_index: int, attempt: int, *, code: str, evidence: Mapping[str, Any]
    ) -> None:
        """Keeps an update out of the sum that is being made, and of every other.

        Raises:
            LedgerError: the attempt is not aggregating, or does not count it, or counts nothing else.
        """
        here = {"round": round_index, "attempt": attempt}
        with self._file.transaction() as sql:
            rows = sql.execute(
                statement(
                    "SELECT c.assignment_id, a.device FROM contributions c JOIN assignments a USING (assignment_id) "
                    "JOIN rounds r ON r.round = c.round AND r.attempt = c.attempt "
                    "WHERE c.round = :round AND c.attempt = :attempt AND r.state = 'aggregating'"
                ),
                here,
            )
            devices = {str(counted): str(device) for counted, device in rows}
            device = devices.pop(assignment_id, None)
            if device is None or not devices:
                raise LedgerError(
                    f"round {round_index}, attempt {attempt}: assignment {assignment_id[:12]} is not one of several "
                    "that are being summed"
                )
            sql.execute(statement("DELETE FROM contributions WHERE assignment_id = :id"), {"id": assignment_id})
            sql.execute(
                statement("UPDATE rounds SET participants = :devices WHERE round = :round AND attempt = :attempt"),
                {"devices": encode_json(sorted(devices.values())), **here},
            )
            self._insert(sql, assignment_id, device, round_index, code, evidence)

    def all(self) -> tuple[Quarantined, ...]:
        """Every update that is kept out, in the order of rounds and devices."""
        rows = self._file.all(
            "SELECT assignment_id, device, round, code, evidence, created_at FROM quarantine ORDER BY round, device"
        )
        return tuple(from_row(Quarantined, (*row[:4], msgspec.json.decode(row[4]), row[5])) for row in rows)

    def release(self, assignment_id: str) -> bool:
        """Takes an update out of quarantine, without letting any round count it; False when it was not there."""
        with self._file.transaction() as sql:
            row = sql.execute(
                statement("DELETE FROM quarantine WHERE assignment_id = :id RETURNING device, round, code"),
                {"id": assignment_id},
            ).first()
            if row is not None:
                details = {"code": row[2], "round": row[1], "assignment_id": assignment_id}
                append(sql, self._event("update-released", row[0], details))
            return row is not None


class Reliabilities(LedgerPart):
    """Where devices stand (the table ``standings``), and the updates that is judged from."""

    def offenders(self, since_round: int) -> set[str]:
        """Devices with an update that was rejected or quarantined in round ``since_round`` or later."""
        rows = self._file.all(
            "SELECT device FROM assignments WHERE state = 'rejected' AND round >= :since "
            "UNION SELECT device FROM quarantine WHERE round >= :since",
            {"since": since_round},
        )
        return {str(device) for (device,) in rows}

    def conduct(self, device: str, since_round: int) -> list[tuple[int, bool]]:
        """(Round, whether it was rejected or quarantined) of each of a device's updates, in their order."""
        rows = self._file.all(
            "SELECT a.round, a.state, q.code FROM assignments a LEFT JOIN quarantine q USING (assignment_id) "
            "WHERE a.device = :device AND a.round >= :since AND a.state IN ('reported', 'rejected') "
            "ORDER BY a.round, a.attempt",
            {"device": device, "since": since_round},
        )
        return [(int(number), state == "rejected" or code is not None) for number, state, code in rows]

    def answers(self, since_round: int) -> list[tuple[str, int, str]]:
        """(Device, round, state) of what came of orders, by device and in their order.

        Only of devices that refused an order or let it expire, and of attempts in which somebody reported: an attempt
        that was given up for another reason says nothing of a device. Nor does what its owner's policy or its masks
        forbid.
        """
        rows = self._file.all(
            "SELECT a.device, a.round, a.state FROM assignments a WHERE a.round >= :since "
            "AND a.state IN ('reported', 'rejected', 'refused', 'expired') "
            "AND (a.state <> 'expired' OR a.code = :late) "
            "AND (a.state <> 'refused' OR a.code NOT IN ('policy', 'policy-wait', 'masks-told')) AND a.device IN "
            "(SELECT device FROM assignments WHERE state IN ('refused', 'expired') AND round >= :since) "
            "AND EXISTS (SELECT 1 FROM assignments b WHERE b.round = a.round AND b.attempt = a.attempt "
            "AND b.state = 'reported') ORDER BY a.device, a.round, a.attempt",
            {"since": since_round, "late": DeadlineExpired.code},
        )
        return [(str(device), int(number), str(state)) for device, number, state in rows]

    def outcomes(self) -> dict[str, tuple[int, int, int]]:
        """Device -> how many of its updates were taken, rejected, quarantined; those without any are left out."""
        rows = self._file.all(
            "SELECT a.device, SUM(CASE WHEN a.state = 'reported' AND q.code IS NULL THEN 1 ELSE 0 END), "
            "SUM(CASE WHEN a.state = 'rejected' THEN 1 ELSE 0 END), "
            "SUM(CASE WHEN q.code IS NULL THEN 0 ELSE 1 END) "
            "FROM assignments a LEFT JOIN quarantine q USING (assignment_id) "
            "WHERE a.state IN ('reported', 'rejected') GROUP BY a.device ORDER BY a.device"
        )
        return {str(row[0]): (int(row[1]), int(row[2]), int(row[3])) for row in rows}

    def put(self, reliabilities: Sequence[Reliability]) -> None:
        """Replaces where these devices stand, all in one transaction."""
        if not reliabilities:
            return
        names = Reliability.__struct_fields__
        changes = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
        places = ", ".join(f":{name}" for name in names)
        with self._file.transaction() as sql:
            append(sql, *self._barred(sql, reliabilities))
            sql.execute(
                statement(
                    f"INSERT INTO standings ({', '.join(names)}) VALUES ({places}) "
                    f"ON CONFLICT (device) DO UPDATE SET {changes}"
                ),
                [{**msgspec.structs.asdict(s), "changed_at": s.changed_at or time.time()} for s in reliabilities],
            )

    def _barred(self, sql: Connection, reliabilities: Sequence[Reliability]) -> list[Event]:
        """An entry for each device that is barred from another round on than before."""
        before = {
            str(d): int(until) for d, until in sql.execute(statement("SELECT device, barred_until FROM standings"))
        }
        return [
            Event(
                actor=self._file.actor,
                action="device-barred" if now.barred_until >= 0 else "device-let-back",
                subject=actors.device(now.device),
                details={"until_round": now.barred_until, "score": now.score, "rejected": now.rejected}
                | {"quarantined": now.quarantined},
            )
            for now in reliabilities
            if now.barred_until != before.get(now.device, -1)
        ]

    def all(self) -> dict[str, Reliability]:
        """Where devices stand, by id and in its order; one that is not there did nothing of note."""
        names = Reliability.__struct_fields__
        rows = self._file.all(f"SELECT {', '.join(names)} FROM standings ORDER BY device")
        return {row[0]: from_row(Reliability, row) for row in rows}

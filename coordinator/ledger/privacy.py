"""What protects devices' updates, in the ledger: each attempt's noise, and what its masking has come to.

What the bodies say is :mod:`coordinator.privacy`'s.
"""

from __future__ import annotations

from coordinator.ledger.audit_log import append, naming
from coordinator.ledger.database import LedgerPart, statement

LIE = "lie"
"""The kind of what a device said that shows it lied; its body is why, in words."""


SILENCES_KEPT_ROUNDS = 10
"""How long it is remembered that a device was silent."""


class Privacy(LedgerPart):
    """What each attempt adds to its sum."""

    def add(self, round_index: int, attempt: int, mechanism: bytes) -> bool:
        """Adds what a planned attempt adds to its sum; False when there is something already, which stays."""
        with self._file.transaction() as sql:
            cursor = sql.execute(
                statement("INSERT INTO privacy VALUES (:round, :attempt, :mechanism) ON CONFLICT DO NOTHING"),
                {"round": round_index, "attempt": attempt, "mechanism": mechanism},
            )
            return cursor.rowcount == 1

    def replace(self, round_index: int, attempt: int, mechanism: bytes) -> None:
        """Puts ``mechanism`` in place of what an attempt has."""
        with self._file.transaction() as sql:
            sql.execute(
                statement("UPDATE privacy SET mechanism = :mechanism WHERE round = :round AND attempt = :attempt"),
                {"round": round_index, "attempt": attempt, "mechanism": mechanism},
            )

    def all(self) -> dict[tuple[int, int], bytes]:
        """(Round, attempt) -> mechanism."""
        rows = self._file.all("SELECT round, attempt, mechanism FROM privacy")
        return {(row[0], row[1]): bytes(row[2]) for row in rows}


class Masking(LedgerPart):
    """What devices say, and are told, so that only their sum is seen."""

    def add(self, round_index: int, attempt: int, device: str, kind: str, body: bytes) -> bool:
        """Adds what ``device`` said as ``kind``, or was said to it; False when it is there already, which stays."""
        with self._file.transaction() as sql:
            cursor = sql.execute(
                statement(
                    "INSERT INTO masking VALUES (:round, :attempt, :device, :kind, :body) ON CONFLICT DO NOTHING"
                ),
                {"round": round_index, "attempt": attempt, "device": device, "kind": kind, "body": body},
            )
            if cursor.rowcount == 1 and kind == LIE:
                why = body.decode(errors="replace")
                append(sql, naming(self._file.actor, device, "masking-lie", why, round=round_index, attempt=attempt))
            return cursor.rowcount == 1

    def of_attempt(self, round_index: int, attempt: int, kind: str) -> dict[str, bytes]:
        """Device -> body of ``kind`` in an attempt, by device id."""
        rows = self._file.all(
            "SELECT device, body FROM masking WHERE round = :round AND attempt = :attempt AND kind = :kind "
            "ORDER BY device",
            {"round": round_index, "attempt": attempt, "kind": kind},
        )
        return {row[0]: bytes(row[1]) for row in rows}

    def devices(self, round_index: int, attempt: int, kind: str) -> frozenset[str]:
        """Whose bodies of ``kind`` are there in an attempt; shares of a large cohort are not to be read for that."""
        rows = self._file.all(
            "SELECT device FROM masking WHERE round = :round AND attempt = :attempt AND kind = :kind",
            {"round": round_index, "attempt": attempt, "kind": kind},
        )
        return frozenset(row[0] for row in rows)

    def find(self, round_index: int, attempt: int, device: str, kind: str) -> bytes | None:
        """The body of ``kind`` of one device in an attempt."""
        rows = self._file.all(
            "SELECT body FROM masking WHERE round = :round AND attempt = :attempt AND device = :device "
            "AND kind = :kind",
            {"round": round_index, "attempt": attempt, "device": device, "kind": kind},
        )
        return bytes(rows[0][0]) if rows else None

    def drop(self, before_round: int) -> None:
        """Forgets the masking of rounds before ``before_round``, but not who lied, and who was silent only later."""
        with self._file.transaction() as sql:
            sql.execute(
                statement(
                    "DELETE FROM masking WHERE round < :round AND kind <> 'lie' AND (kind <> 'silent' OR round < :old)"
                ),
                {"round": before_round, "old": before_round - SILENCES_KEPT_ROUNDS},
            )

    def silences(self) -> list[tuple[int, int, str]]:
        """Round, attempt and device of every silence that is remembered."""
        rows = self._file.all("SELECT round, attempt, device FROM masking WHERE kind = 'silent' ORDER BY 1, 2, 3")
        return [(row[0], row[1], row[2]) for row in rows]

    def of_round(self, round_index: int, kind: str) -> list[bytes]:
        """Bodies of ``kind`` in all attempts at a round."""
        rows = self._file.all(
            "SELECT body FROM masking WHERE round = :round AND kind = :kind ORDER BY attempt, device",
            {"round": round_index, "kind": kind},
        )
        return [bytes(row[0]) for row in rows]

    def liars(self) -> frozenset[str]:
        """Devices that lied about their masks in any round."""
        return frozenset(row[0] for row in self._file.all("SELECT DISTINCT device FROM masking WHERE kind = 'lie'"))

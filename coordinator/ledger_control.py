"""What processes tell each other through the ledger: which devices are there, and what a person wants of the run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coordinator.ledger_file import LedgerPart, statement, storable


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """A device as a coordinator last heard it.

    Attributes:
        owner: the coordinator that heard it.
        hello, heartbeat: bodies of its messages, as sent; empty: none yet, or, when it is written, as before.
        away_reason: of its goodbye or last will; empty while it is there.
        age_s: since it was heard, by the database's clock; not read when it is written.
    """

    device: str
    owner: str
    hello: bytes = b""
    heartbeat: bytes = b""
    away_reason: str = ""
    age_s: float = 0.0


class ControlTables(LedgerPart):
    """The tables ``presence`` and ``wishes``."""

    def set_presence(self, presences: Sequence[Presence]) -> None:
        """Writes that these devices were heard now, all in one transaction."""
        if not presences:
            return
        rows = [
            {
                "device": p.device,
                "owner": p.owner,
                "hello": p.hello,
                "heartbeat": p.heartbeat,
                "reason": storable(p.away_reason),
            }
            for p in presences
        ]
        with self._file.transaction() as sql:
            sql.execute(
                statement(
                    "INSERT INTO presence (device, owner, hello, heartbeat, heard_at, away_reason) "
                    f"VALUES (:device, :owner, :hello, :heartbeat, {self._file.clock}, :reason) "
                    "ON CONFLICT (device) DO UPDATE SET owner = excluded.owner, heard_at = excluded.heard_at, "
                    "away_reason = excluded.away_reason, "
                    "hello = CASE WHEN length(excluded.hello) = 0 THEN presence.hello ELSE excluded.hello END, "
                    "heartbeat = CASE WHEN length(excluded.heartbeat) = 0 "
                    "THEN presence.heartbeat ELSE excluded.heartbeat END"
                ),
                rows,
            )

    def presences(self, since_s: float | None = None) -> tuple[Presence, ...]:
        """Devices heard within the last ``since_s`` seconds, or ever; by id."""
        clock = self._file.clock
        recent, values = ("", {}) if since_s is None else (f"WHERE heard_at >= {clock} - :since ", {"since": since_s})
        rows = self._file.all(
            f"SELECT device, owner, hello, heartbeat, away_reason, {clock} - heard_at FROM presence {recent}"
            "ORDER BY device",
            values,
        )
        return tuple(
            Presence(
                device=row[0], owner=row[1], hello=row[2], heartbeat=row[3], away_reason=row[4], age_s=max(0.0, row[5])
            )
            for row in rows
        )

    def set_wish(self, name: str, value: str) -> None:
        """Leaves a wish for whoever runs the federation; the last one stands. Written whoever holds a lease."""
        with self._file.transaction(is_fenced=False) as sql:
            sql.execute(
                statement(
                    f"INSERT INTO wishes VALUES (:name, :value, {self._file.clock}) "
                    "ON CONFLICT (name) DO UPDATE SET value = excluded.value, set_at = excluded.set_at"
                ),
                {"name": name, "value": value},
            )

    def wish(self, name: str) -> str | None:
        """The wish of that name, or None when nobody has any."""
        row = self._file.one("SELECT value FROM wishes WHERE name = :name", {"name": name})
        return None if row is None else str(row[0])

"""What processes tell each other through the ledger: leases, which devices are there, what a person asks of the run.

A coordinator whose lease ran out writes nothing more. Times are the database's own, so that the clocks of two machines
need not agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from coordinator.audit_log import actors
from coordinator.audit_log.entry import Event
from coordinator.ledger.audit_log import append
from coordinator.ledger.database import Fence, LedgerPart, statement, storable
from coordinator.ledger.records import from_row


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds what.

    Attributes:
        owner: a name of one process; a restarted one takes another.
        term: grows by one whenever another owner takes the lease.
        left_s: until it runs out; zero or less when it has, or was released.
    """

    name: str
    owner: str
    term: int
    left_s: float


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


class Leases(LedgerPart):
    """Who holds what."""

    def take(self, name: str, owner: str, ttl_s: float) -> int | None:
        """The term of the lease, now held for ``ttl_s``; None while another owner holds it."""
        clock = self._file.clock
        with self._file.transaction(is_fenced=False) as sql:
            before = sql.execute(
                statement("SELECT owner, expires_at > 0 FROM leases WHERE name = :name"), {"name": name}
            ).first()
            term = sql.execute(
                statement(
                    f"INSERT INTO leases VALUES (:name, :owner, 1, {clock} + :ttl) ON CONFLICT (name) DO UPDATE SET "
                    "term = CASE WHEN leases.owner = excluded.owner THEN leases.term ELSE leases.term + 1 END, "
                    "owner = excluded.owner, expires_at = excluded.expires_at "
                    f"WHERE leases.owner = excluded.owner OR leases.expires_at <= {clock} RETURNING term"
                ),
                {"name": name, "owner": owner, "ttl": ttl_s},
            ).scalar()
            if term is not None and (before is None or before[0] != owner or not before[1]):
                details: dict[str, Any] = {"term": int(term)}
                if before is not None and before[0] != owner:
                    details |= {"from": before[0], "how": "it ran out" if before[1] else "it was let go"}
                append(sql, _lease_event("lease-taken", owner, name, details))
            return None if term is None else int(term)

    def renew(self, name: str, owner: str, term: int, ttl_s: float) -> bool:
        """Holds a lease for ``ttl_s`` from now; False when another owner took it or it was released.

        One that ran out and that nobody took is held again.
        """
        return self._set_expiry(name, owner, term, f"{self._file.clock} + :ttl", ttl_s)

    def release(self, name: str, owner: str, term: int) -> bool:
        """Lets go of a lease, so that another owner need not wait; False when it was another's already."""
        return self._set_expiry(name, owner, term, "0.0 * :ttl", 0.0, is_end=True)

    def release_all(self, owner: str) -> None:
        """Lets go of every lease of ``owner``, a process that is known to be dead."""
        with self._file.transaction(is_fenced=False) as sql:
            held = sql.execute(
                statement("SELECT name, term FROM leases WHERE owner = :owner AND expires_at > 0 ORDER BY name"),
                {"owner": owner},
            ).all()
            sql.execute(statement("UPDATE leases SET expires_at = 0.0 WHERE owner = :owner"), {"owner": owner})
            append(sql, *(_lease_event("lease-let-go", owner, name, {"term": term}) for name, term in held))

    def _set_expiry(
        self, name: str, owner: str, term: int, expires_at: str, ttl_s: float, *, is_end: bool = False
    ) -> bool:
        with self._file.transaction(is_fenced=False) as sql:
            done = sql.execute(
                statement(
                    f"UPDATE leases SET expires_at = {expires_at} "
                    "WHERE name = :name AND owner = :owner AND term = :term AND expires_at > 0"
                ),
                {"name": name, "owner": owner, "term": term, "ttl": ttl_s},
            )
            if is_end and done.rowcount == 1:
                append(sql, _lease_event("lease-let-go", owner, name, {"term": term}))
            return done.rowcount == 1

    def all(self) -> tuple[Lease, ...]:
        """Every lease that was ever taken, by name."""
        rows = self._file.all(f"SELECT name, owner, term, expires_at - {self._file.clock} FROM leases ORDER BY name")
        return tuple(from_row(Lease, row) for row in rows)

    def fence(self, name: str, owner: str, term: int) -> None:
        """From now on every write of this object asks, in its own transaction, whether the lease is still held.

        One that is not raises :class:`~edge.contracts.errors.LeaseLost` and changes nothing.
        """
        self._file.fence = Fence(name=name, owner=owner, term=term)


def _lease_event(action: str, owner: str, name: str, details: dict[str, Any]) -> Event:
    return Event(actor=actors.coordinator(owner), action=action, subject=f"lease:{name}", details=details)


class Presences(LedgerPart):
    """Which devices are there."""

    def put(self, presences: Sequence[Presence]) -> None:
        """Writes that these devices were heard now, all in one transaction."""
        if not presences:
            return
        rows = [{**msgspec.structs.asdict(p), "away_reason": storable(p.away_reason)} for p in presences]
        with self._file.transaction() as sql:
            sql.execute(
                statement(
                    "INSERT INTO presence (device, owner, hello, heartbeat, heard_at, away_reason) "
                    f"VALUES (:device, :owner, :hello, :heartbeat, {self._file.clock}, :away_reason) "
                    "ON CONFLICT (device) DO UPDATE SET owner = excluded.owner, heard_at = excluded.heard_at, "
                    "away_reason = excluded.away_reason, "
                    "hello = CASE WHEN length(excluded.hello) = 0 THEN presence.hello ELSE excluded.hello END, "
                    "heartbeat = CASE WHEN length(excluded.heartbeat) = 0 "
                    "THEN presence.heartbeat ELSE excluded.heartbeat END"
                ),
                rows,
            )

    def all(self, since_s: float | None = None) -> tuple[Presence, ...]:
        """Devices heard within the last ``since_s`` seconds, or ever; by id."""
        clock = self._file.clock
        recent, values = ("", {}) if since_s is None else (f"WHERE heard_at >= {clock} - :since ", {"since": since_s})
        rows = self._file.all(
            f"SELECT device, owner, hello, heartbeat, away_reason, {clock} - heard_at FROM presence {recent}"
            "ORDER BY device",
            values,
        )
        return tuple(from_row(Presence, (*row[:5], max(0.0, row[5]))) for row in rows)


class Requests(LedgerPart):
    """What a person wants of the run (the table ``wishes``)."""

    def put(self, name: str, value: str) -> None:
        """Leaves a request for whoever runs the federation; the last one stands. Written whoever holds a lease."""
        with self._file.transaction(is_fenced=False) as sql:
            before = sql.execute(statement("SELECT value FROM wishes WHERE name = :name"), {"name": name}).scalar()
            if (before or "") != value:
                details = {"name": name, "value": value, "before": before or ""}
                append(sql, Event(actor=self._file.actor, action="run-asked", details=details))
            sql.execute(
                statement(
                    f"INSERT INTO wishes VALUES (:name, :value, {self._file.clock}) "
                    "ON CONFLICT (name) DO UPDATE SET value = excluded.value, set_at = excluded.set_at"
                ),
                {"name": name, "value": value},
            )

    def find(self, name: str) -> str | None:
        """The request of that name, or None when there is none."""
        row = self._file.one("SELECT value FROM wishes WHERE name = :name", {"name": name})
        return None if row is None else str(row[0])

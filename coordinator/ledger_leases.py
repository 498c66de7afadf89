"""Leases in the ledger: which coordinator does what and for how long; one whose lease ran out writes nothing more.

Times are the database's own, so that the clocks of two machines need not agree.
"""

from __future__ import annotations

import msgspec

from coordinator.ledger_file import Fence, LedgerPart, statement


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


class LeaseTables(LedgerPart):
    """The table ``leases``."""

    def take_lease(self, name: str, owner: str, ttl_s: float) -> int | None:
        """The term of the lease, now held for ``ttl_s``; None while another owner holds it."""
        clock = self._file.clock
        with self._file.transaction(is_fenced=False) as sql:
            term = sql.execute(
                statement(
                    f"INSERT INTO leases VALUES (:name, :owner, 1, {clock} + :ttl) ON CONFLICT (name) DO UPDATE SET "
                    "term = CASE WHEN leases.owner = excluded.owner THEN leases.term ELSE leases.term + 1 END, "
                    "owner = excluded.owner, expires_at = excluded.expires_at "
                    f"WHERE leases.owner = excluded.owner OR leases.expires_at <= {clock} RETURNING term"
                ),
                {"name": name, "owner": owner, "ttl": ttl_s},
            ).scalar()
            return None if term is None else int(term)

    def renew_lease(self, name: str, owner: str, term: int, ttl_s: float) -> bool:
        """Holds a lease for ``ttl_s`` from now; False when another owner took it or it was released.

        One that ran out and that nobody took is held again.
        """
        return self._set_expiry(name, owner, term, f"{self._file.clock} + :ttl", ttl_s)

    def release_lease(self, name: str, owner: str, term: int) -> bool:
        """Lets go of a lease, so that another owner need not wait; False when it was another's already."""
        return self._set_expiry(name, owner, term, "0.0 * :ttl", 0.0)

    def release_leases(self, owner: str) -> None:
        """Lets go of every lease of ``owner``, a process that is known to be dead."""
        with self._file.transaction(is_fenced=False) as sql:
            sql.execute(statement("UPDATE leases SET expires_at = 0.0 WHERE owner = :owner"), {"owner": owner})

    def _set_expiry(self, name: str, owner: str, term: int, expires_at: str, ttl_s: float) -> bool:
        with self._file.transaction(is_fenced=False) as sql:
            done = sql.execute(
                statement(
                    f"UPDATE leases SET expires_at = {expires_at} "
                    "WHERE name = :name AND owner = :owner AND term = :term AND expires_at > 0"
                ),
                {"name": name, "owner": owner, "term": term, "ttl": ttl_s},
            )
            return done.rowcount == 1

    def leases(self) -> tuple[Lease, ...]:
        """Every lease that was ever taken, by name."""
        rows = self._file.all(f"SELECT name, owner, term, expires_at - {self._file.clock} FROM leases ORDER BY name")
        return tuple(Lease(name=row[0], owner=row[1], term=row[2], left_s=row[3]) for row in rows)

    def fenced_by(self, name: str, owner: str, term: int) -> None:
        """From now on every write of this object asks, in its own transaction, whether the lease is still held.

        One that is not raises :class:`~edge.contracts.errors.LeaseLost` and changes nothing.
        """
        self._file.fence = Fence(name=name, owner=owner, term=term)

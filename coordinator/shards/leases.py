"""The leases of one process: that it is alive, and which shards it holds; renewed, taken and let go by a thread.

Once a shard's lease has run out on this process's own clock nobody of the shard is answered any more, whether or not
another process has taken it; the ledger refuses its writes by its own clock. What a holder does is
:mod:`coordinator.shards.handler`'s.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from coordinator.ledger.ledger import Ledger
from coordinator.shards.leadership import LOOK_S, RENEWALS, lease_clock
from coordinator.shards.membership import fair_share, free_shards, member_lease, shard_lease
from edge.contracts.errors import LeaseLost, LedgerError

log = logging.getLogger("apportion.coordinator")

_SOON_S = 0.02
"""After a lease's end it is looked whether it is free."""


class HeldShard:
    """One shard while this process holds its lease.

    Attributes:
        on_lost: called from the leases' thread once another process may have the shard.
    """

    def __init__(self, number: int, owner: str, term: int, held_until: float) -> None:
        self.number = number
        self.owner = owner
        self.term = term
        self.on_lost: Callable[[], None] = lambda: None
        self._held_until = held_until
        self._is_lost = False

    def is_held(self) -> bool:
        """Whether nobody else can hold the shard at this moment; asks no server."""
        return not self._is_lost and lease_clock() < self._held_until

    def check(self) -> None:
        """Nothing while the shard is ours.

        Raises:
            LeaseLost: its lease ran out, or another process took it.
        """
        if not self.is_held():
            raise LeaseLost(
                f"lease '{shard_lease(self.number)}' of {self.owner}, term {self.term}, is no longer held; "
                "another coordinator may serve its devices"
            )

    def renewed(self, until: float) -> None:
        """The lease was renewed."""
        self._held_until = until

    def lose(self) -> None:
        """Another process may hold the shard from now on."""
        self._is_lost = True
        self.on_lost()


class ShardLeases:
    """Takes this process's fair share of the shards, and keeps it, while the context is open.

    Args:
        ledger: a connection that nobody else writes with.
        owner: a name that no other process has or had.
        lease_s: seconds that a silent holder keeps a lease.
        changed: called when a shard was taken or lost, or is to be let go.
    """

    def __init__(self, ledger: Ledger, owner: str, *, shards: int, lease_s: float, changed: Callable[[], None]) -> None:
        self._ledger = ledger
        self.owner = owner
        self._shards = shards
        self._lease_s = lease_s
        self._changed = changed
        self._held: dict[int, HeldShard] = {}
        self._surplus = 0
        self._renew_at = self._rests_until = 0.0
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="shard-leases", daemon=True)

    def __enter__(self) -> ShardLeases:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Lets go of every lease, so that nobody has to wait for their end."""
        self._ends.set()
        self._thread.join(2 * self._lease_s)
        if self._thread.is_alive():
            return  # a renewal hangs: a release would hang behind it
        for shard in self.held().values():
            self.give_up(shard)
        with contextlib.suppress(LedgerError):
            self._ledger.leases.release_all(self.owner)

    def held(self) -> dict[int, HeldShard]:
        """The shards of this process, by number."""
        with self._lock:
            return dict(self._held)

    def surplus(self) -> list[HeldShard]:
        """Shards that others are to have; :meth:`give_up` each when its devices are answered no more."""
        held = sorted(self.held().items())
        return [shard for _, shard in held[len(held) - min(self._surplus, len(held)) :]]

    def give_up(self, shard: HeldShard, *, rest_s: float = 0.0) -> None:
        """Lets go of ``shard``.

        Args:
            rest_s: this process takes no shard for so long, and leaves its share to others: it could not serve one.
        """
        with self._lock:
            if self._held.get(shard.number) is shard:
                del self._held[shard.number]
                self._surplus = max(0, self._surplus - 1)
            self._rests_until = max(self._rests_until, lease_clock() + rest_s)
        shard.lose()
        with contextlib.suppress(LedgerError):
            self._ledger.leases.release(shard_lease(shard.number), self.owner, shard.term)

    def _keep(self) -> None:
        pause_s = 0.0
        while not self._ends.wait(pause_s):
            try:
                pause_s = self._turn()
            except LedgerError as error:
                log.warning("leases of shards are not renewed: %s", error)
                pause_s = min(LOOK_S, self._lease_s / RENEWALS)

    def _turn(self) -> float:
        """Renew what is due, take what is free and ours to take; seconds until there is something to do again."""
        if lease_clock() >= self._renew_at:
            began = lease_clock()
            self._renew()
            self._renew_at = began + self._lease_s / RENEWALS
        leases = self._ledger.leases.all()
        share, now = fair_share(self.owner, leases, self._shards), lease_clock()
        for number in free_shards(leases, self._shards):
            if number not in self._held and len(self._held) < share and now >= self._rests_until:
                self._take(number)
        surplus = max(0, len(self._held) - share)
        if surplus != self._surplus:
            self._surplus = surplus
            self._changed()
        names = {shard_lease(number) for number in range(self._shards)}
        ends = [lease.left_s + _SOON_S for lease in leases if lease.name in names and lease.owner != self.owner]
        return max(_SOON_S, min([LOOK_S, self._renew_at - lease_clock(), *(left for left in ends if left > 0)]))

    def _renew(self) -> None:
        if lease_clock() >= self._rests_until:  # else its share is the others'
            self._ledger.leases.take(member_lease(self.owner), self.owner, self._lease_s)
        for number, shard in self.held().items():
            asked = lease_clock()
            if self._ledger.leases.renew(shard_lease(number), self.owner, shard.term, self._lease_s):
                shard.renewed(asked + self._lease_s)
                continue
            with self._lock:
                self._held.pop(number, None)
            shard.lose()
            self._changed()

    def _take(self, number: int) -> None:
        asked = lease_clock()  # before the database's clock is read: what we believe ends before what the others see
        term = self._ledger.leases.take(shard_lease(number), self.owner, self._lease_s)
        if term is None:
            return
        with self._lock:
            self._held[number] = HeldShard(number, self.owner, term, asked + self._lease_s)
        self._changed()

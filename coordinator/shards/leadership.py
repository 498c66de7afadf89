"""Which of several coordinators runs a federation: the one that holds a lease in the ledger they share.

The holder renews the lease from a thread of its own. Once the lease has run out it answers no device and its ledger
refuses its writes, whether or not anybody has taken over yet. What a leader does is :mod:`coordinator.rounds.round`'s.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from coordinator.ledger.ledger import Ledger
from edge.contracts.errors import LeaseLost, LedgerError

log = logging.getLogger("apportion.coordinator")

LEADER = "leader"
"""Name of the lease."""

RENEWALS = 3
"""Renewals within a lease: two of them may fail."""

LOOK_S = 1.0
"""How often whoever waits for the lease looks at it."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while a laptop sleeps, where the system has such a clock."""


class Leadership:
    """The lease of one process, from :meth:`take` to the end of the ``with`` block.

    Args:
        ledger: a connection that nobody else writes with: a renewal waits for no other write of this process.
        owner: a name that no other process has or had.
        lease_s: seconds that a silent holder keeps the lease.

    Attributes:
        term: grows with every change of the holder; 0 before :meth:`take`.
    """

    def __init__(self, ledger: Ledger, owner: str, lease_s: float) -> None:
        self._ledger = ledger
        self.owner = owner
        self._lease_s = lease_s
        self.term = 0
        self._held_until = 0.0
        self._is_lost = False
        self._on_lost: list[Callable[[], None]] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def take(self) -> bool:
        """Whether the lease is ours now; another process may hold it.

        Raises:
            LedgerError: the database does not answer.
        """
        asked = lease_clock()  # before the database's clock is read: what we believe ends before what the others see
        term = self._ledger.leases.take(LEADER, self.owner, self._lease_s)
        if term is None:
            return False
        self.term, self._held_until = term, asked + self._lease_s
        return True

    def is_held(self) -> bool:
        """Whether nobody else can hold the lease at this moment; asks no server."""
        return not self._is_lost and lease_clock() < self._held_until

    def check(self) -> None:
        """Nothing while the lease is ours.

        Raises:
            LeaseLost: it ran out, or another process took it.
        """
        if not self.is_held():
            raise LeaseLost(
                f"lease '{LEADER}' of {self.owner}, term {self.term}, is no longer held; "
                "another coordinator may go on with the work"
            )

    @contextlib.contextmanager
    def when_lost(self, callback: Callable[[], None]) -> Iterator[None]:
        """While the context is open, ``callback`` is called from the lease's thread once another process leads."""
        self._on_lost.append(callback)
        try:
            yield
        finally:
            self._on_lost.remove(callback)

    def __enter__(self) -> Leadership:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Lets go of the lease, so that nobody has to wait for its end."""
        self._ends.set()
        self._thread.join(2 * self._lease_s)
        if self._is_lost or self._thread.is_alive():
            return  # another's, or a renewal hangs: a release would hang behind it
        with contextlib.suppress(LedgerError):
            self._ledger.leases.release(LEADER, self.owner, self.term)

    def _keep(self) -> None:
        every = self._lease_s / RENEWALS
        while not self._ends.wait(every):
            asked = lease_clock()
            try:
                is_ours = self._ledger.leases.renew(LEADER, self.owner, self.term, self._lease_s)
            except LedgerError as error:
                log.warning("the lease is not renewed: %s", error)
                continue
            if is_ours:
                self._held_until = asked + self._lease_s
                continue
            self._is_lost = True
            for callback in tuple(self._on_lost):
                callback()
            return


def wait_for_lead(leadership: Leadership, ledger: Ledger, *, say: Callable[[str], None], until_finished: bool) -> bool:
    """Wait until the lease is ours; False when the run was finished by another, where ``until_finished`` asks for that.

    A database that does not answer is asked again.
    """
    last = ""
    while True:
        try:
            if until_finished and ledger.federation().state == "finished":
                return False
            holder = next((lease for lease in ledger.leases.all() if lease.name == LEADER), None)
            if (holder is None or holder.left_s <= 0) and leadership.take():
                return True
            news = "" if holder is None else f"{holder.owner} leads the run; this process waits for its lease"
            patience_s = LOOK_S if holder is None else min(LOOK_S, max(0.05, holder.left_s))
        except LedgerError as error:
            news, patience_s = str(error), LOOK_S
        if news and news != last:
            say(news)
            last = news
        time.sleep(patience_s)


def lease_clock() -> float:
    """Seconds on a clock of this machine that goes on while it sleeps: what a holder measures its lease with."""
    return time.clock_gettime(_CLOCK)

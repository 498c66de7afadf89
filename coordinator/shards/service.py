"""The shards of one process: a handler for each that it holds, and a thread that keeps handlers and leases together.

The same whether the process leads or not. What there is to send it finds in the ledger, a few times a second.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable

from coordinator.ledger.ledger import Ledger
from coordinator.rounds.collecting import STORE_DEADLINE_S
from coordinator.shards.handler import Served, ShardHandler
from coordinator.shards.leases import HeldShard, ShardLeases
from edge.contracts.errors import AccessDenied, BrokerUnreachable, LedgerError

log = logging.getLogger("apportion.coordinator")

LOOK_S = 0.2
"""How often a process looks into the ledger for orders; the process that leads is told when there are some."""


class LedgerClock:
    """Seconds left in the open round, as the leader last wrote them; they stand still while nobody leads."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._written: tuple[int, int, float] | None = None
        self._seen_at = 0.0

    def remaining_s(self) -> float:
        """Seconds left, never below zero; zero between rounds. Asks the ledger.

        Raises:
            LedgerError: it does not answer.
        """
        attempt = self._ledger.rounds.open()
        if attempt is None:
            return 0.0
        written = attempt.round, attempt.attempt, attempt.deadline_s
        if written != self._written:
            self._written, self._seen_at = written, time.monotonic()
        # Who leads writes them so often: what is older was not written by anybody.
        return max(0.0, attempt.deadline_s - min(time.monotonic() - self._seen_at, STORE_DEADLINE_S))


class ShardService:
    """Serves this process's share of the shards while the context is open.

    Args:
        leases_ledger: a connection for leases alone.
        ledger: a connection for looking.
    """

    def __init__(self, served: Served, leases_ledger: Ledger, ledger: Ledger, *, owner: str, lease_s: float) -> None:
        self._served = served
        self._ledger = ledger
        self._lease_s = lease_s
        self.leases = ShardLeases(
            leases_ledger, owner, shards=served.shards, lease_s=lease_s, changed=lambda: self.nudge()
        )
        self._handlers: dict[int, ShardHandler] = {}
        self._clock = LedgerClock(ledger)
        self._news = threading.Event()
        self._is_ending = False
        self._trouble = ""
        self._thread = threading.Thread(target=self._serve, name="shards", daemon=True)

    def __enter__(self) -> ShardService:
        self.leases.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Answers nobody any more and lets go of every lease."""
        self._is_ending = True
        self._news.set()
        self._thread.join(2 * self._lease_s)
        if self._thread.is_alive():
            log.warning("the shards of this process do not end; their leases run out by themselves")
            return
        for handler in list(self._handlers.values()):
            self._close(handler)
        self.leases.__exit__()

    def nudge(self) -> None:
        """Something changed: look at once."""
        self._news.set()

    def handler_of(self, device_shard: int) -> ShardHandler | None:
        """The handler of a shard that is served here, else None."""
        return self._handlers.get(device_shard)

    def _serve(self) -> None:
        while not self._is_ending:
            if self._try(self._keep_up):
                self._trouble = ""
            self._news.wait(LOOK_S)
            self._news.clear()

    def _try(self, action: Callable[[], None]) -> bool:
        """Whether ``action`` went through; why not is said once."""
        try:
            action()
            return True
        except LedgerError as error:
            if str(error) != self._trouble:
                self._served.say(f"shards: {error}")
            self._trouble = str(error)
        except Exception:
            # A bug of ours. The devices of other shards are still to be served.
            log.exception("shards were not looked after; please report this")
        return False

    def _keep_up(self) -> None:
        held = self.leases.held()
        for number, handler in list(self._handlers.items()):
            if held.get(number) is not handler.shard:
                self._close(handler)
                self._served.say(f"shard {number} is another coordinator's now")
        for shard in self.leases.surplus():
            self._let_go(shard)
        self._open_new(self.leases.held())
        if not self._handlers:
            return
        remaining_s = self._clock.remaining_s()
        work = self._ledger.assignments.published()
        for handler in self._handlers.values():
            self._try(functools.partial(handler.look, work, remaining_s))

    def _open_new(self, held: dict[int, HeldShard]) -> None:
        new = [shard for number, shard in sorted(held.items()) if number not in self._handlers]
        for shard in new:
            try:
                self._handlers[shard.number] = ShardHandler(self._served, shard, self._clock.remaining_s)
            except (BrokerUnreachable, AccessDenied) as error:
                self._served.say(f"shard {shard.number} is left to others: {error}")
                self.leases.give_up(shard, rest_s=self._lease_s)
        opened = [self._handlers[shard.number] for shard in new if shard.number in self._handlers]
        if opened:
            names = ", ".join(str(number) for number in sorted(self._handlers))
            self._served.say(f"this process serves shards {names} of {self._served.shards}, as {self.leases.owner}")
            for handler in opened:
                self._served.record(
                    "shard-taken", shard=handler.shard.number, term=handler.shard.term, owner=handler.shard.owner
                )
            opened[0].ask_who_is_there()

    def _let_go(self, shard: HeldShard) -> None:
        handler = self._handlers.get(shard.number)
        if handler is not None:
            self._close(handler)
        self.leases.give_up(shard)
        self._served.say(f"shard {shard.number} is let go: another coordinator has joined")

    def _close(self, handler: ShardHandler) -> None:
        self._handlers.pop(handler.shard.number, None)
        handler.close()

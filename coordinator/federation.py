"""One running federation: its parts, and the thread that answers devices while rounds compute.

Putting the parts together from a configuration is :mod:`coordinator.cli`'s; what happens in which order is
:mod:`coordinator.round`'s.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from coordinator.artifacts import Artifacts
from coordinator.blob_store import BlobStore
from coordinator.cohort import Cohort
from coordinator.configuration import RunConfig
from coordinator.evaluation import Score
from coordinator.event_queue import EventQueue
from coordinator.inbox import Inbox
from coordinator.ledger import Ledger
from coordinator.methods.method import Method, State
from coordinator.progress import Progress
from coordinator.publisher import Publisher
from edge.contracts.errors import ApportionError
from edge.transport.base import Connected, Event, Received

log = logging.getLogger("apportion.coordinator")


class RoundClock:
    """Seconds left in the open round, on the monotonic clock; read by the inbox, set by the round."""

    def __init__(self, *, order_s: float = 0.0) -> None:
        """``order_s``: seconds that every order has from when it is sent; 0 = what is left of its round."""
        self._end = 0.0
        self._order_s = order_s

    def start(self, remaining_s: float) -> None:
        """The round ends ``remaining_s`` from now."""
        self._end = time.monotonic() + remaining_s

    def remaining_s(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._end - time.monotonic())

    def for_orders_s(self) -> float:
        """Seconds that an order sent now has."""
        return self._order_s or self.remaining_s()


class Arrivals(Protocol):
    """What a round asks of whoever hears the devices: an :class:`~coordinator.inbox.Inbox`, or the ledger."""

    def wait(self, timeout_s: float) -> None:
        """Return when the ledger changed, or after ``timeout_s``."""

    def notify(self) -> None:
        """Wakes :meth:`wait`."""

    def announce(self, device: str) -> None:
        """Have the open order of ``device`` sent again."""

    def at_rest(self) -> AbstractContextManager[object]:
        """A context in which no update is recorded."""


@dataclass(frozen=True)
class Federation:
    """Everything a round needs.

    Attributes:
        evaluate: scores of every model the method evaluates, by label.
        on_point: called with the name of each of :data:`coordinator.points.POINTS` as it is passed; tests stop the
            process there.
        tries: attempts that this process has begun, by round: what ended an earlier one may be mended.
    """

    name: str
    config: RunConfig
    method: Method
    artifacts: Artifacts
    ledger: Ledger
    blobs: BlobStore
    cohort: Cohort
    publisher: Publisher
    inbox: Arrivals
    clock: RoundClock
    progress: Progress
    evaluate: Callable[[State], dict[str, Score]]
    on_point: Callable[[str], None] = field(default=lambda point: None)
    tries: Counter[int] = field(default_factory=Counter)


Events = EventQueue | queue.SimpleQueue[Event | None]
SWITCH_S = 0.0005
TOGETHER = 64
"""Accepts of a round that begins, written in one transaction; fewer when nothing else has arrived."""


class Desk:
    """The thread that hands messages from the broker to the inbox, one at a time, in the order of ``events``.

    Messages are dropped while ``may_answer`` says no: devices repeat what is not answered.
    """

    def __init__(self, inbox: Inbox, events: Events, may_answer: Callable[[], bool] = lambda: True) -> None:
        self._inbox = inbox
        self._events = events
        self._may_answer = may_answer
        self._thread = threading.Thread(target=self._serve, name="desk", daemon=True)

    def __enter__(self) -> Desk:
        # A thread that plans or sums would else keep this one waiting 5 ms after every read and write of the disk.
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._events.put(None)
        self._thread.join(10.0)

    def _next(self) -> Event | None:
        try:
            return self._events.get_nowait()
        except queue.Empty:
            self._settle()
            return self._events.get()

    def _settle(self) -> None:
        try:
            self._inbox.settle()
        except ApportionError as error:
            log.warning("accepts are written later: %s", error)  # a full disk, say; the next turn tries it again
        except Exception:
            log.exception("accepts were not written; please report this")

    def _serve(self) -> None:
        self._inbox.accepts_together = TOGETHER
        has_missed = False
        while (event := self._next()) is not None:
            if not self._may_answer():
                has_missed = True
                continue
            try:
                if has_missed:
                    has_missed = False
                    self._inbox.connected()
                if isinstance(event, Received):
                    self._inbox.handle(event.topic, event.payload)
                elif isinstance(event, Connected):
                    self._inbox.connected()
            except Exception:
                # A bug of ours. No message of one device may end the federation for the others.
                log.exception("message %s was not handled; please report this", getattr(event, "topic", event))

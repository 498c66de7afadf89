"""What waits for the message loop: messages that a person or a round waits for go before blocks of uploads.

A device whose block waits sends no further ones; a device whose hello, report or acceptance waits seems slow, and a
round with it. A report stays behind the blocks its device sent before it: agents wait for the last grant, others need
not. So does an offer: who makes one after a broken connection is told how far its upload has come, and sends the rest
again. A block that comes after its upload is over is ignored.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter

from edge.transport.base import Event, Received

BULK = "put"
"""The kind of message that waits for all others; ``get`` has :mod:`coordinator.messaging.block_lane` of its own."""

BEHIND_ITS_BULK = frozenset({"report", "offer"})


class EventQueue:
    """As ``queue.SimpleQueue``: any thread may put, one takes; None asks the taker to end."""

    def __init__(self) -> None:
        self._first: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._bulk: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._count: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._behind: Counter[str] = Counter()
        self._lock = threading.Lock()

    def put(self, event: Event | None) -> None:
        """Add ``event``; returns at once."""
        device, _, kind = event.topic.rpartition("/") if isinstance(event, Received) else ("", "", "")
        with self._lock:
            is_bulk = kind == BULK or (kind in BEHIND_ITS_BULK and device in self._behind)
            if is_bulk:
                self._behind[device] += 1
            (self._bulk if is_bulk else self._first).put(event)
        self._count.put(None)  # after the event: whoever takes this finds one

    def get(self) -> Event | None:
        """The next event, waited for."""
        self._count.get()
        return self._taken()

    def get_nowait(self) -> Event | None:
        """The next event.

        Raises:
            queue.Empty: there is none.
        """
        self._count.get_nowait()
        return self._taken()

    def _taken(self) -> Event | None:
        try:
            return self._first.get_nowait()
        except queue.Empty:
            event = self._bulk.get_nowait()
        if isinstance(event, Received):
            device = event.topic.rpartition("/")[0]
            with self._lock:
                self._behind[device] -= 1
                if not self._behind[device]:
                    del self._behind[device]
        return event

"""What waits for the message loop: messages that a person or a round waits for go before blocks of uploads, of which
one comes after every eight of them at the latest.

A device whose block waits sends no further ones; a device whose hello, report or acceptance waits seems slow, and a
round with it. A report stays behind the blocks its device sent before it: agents wait for the last grant, others need
not. So does an offer: who makes one after a broken connection is told how far its upload has come, and sends the rest
again. A block that comes after its upload is over is ignored.

Devices take turns in both lanes, so one device's flood delays another's message by one of its own; and what is over a
device's budget does not wait at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge.serving.budgets import Budgets
from edge.serving.fair_queue import FairQueue, sender
from edge.transport.base import Event, Received

BULK = "put"
"""The kind of message that waits for all others; ``get`` has :mod:`coordinator.messaging.block_lane` of its own."""

BEHIND_ITS_BULK = frozenset({"report", "offer"})

_FIRST, _BULK = 0, 1


@dataclass(frozen=True)
class OverBudget:
    """Messages of ``device`` are dropped, for ``why``; said once a stretch."""

    device: str
    why: str


class EventQueue:
    """As ``queue.SimpleQueue``: any thread may put, one takes; None asks the taker to end.

    Args:
        budgets: drops what is over a device's, which then comes out as :class:`OverBudget`; None: nothing is dropped.
    """

    def __init__(self, budgets: Budgets | None = None) -> None:
        self._waiting: FairQueue[Event | OverBudget | None] = FairQueue(lanes=2)
        self._budgets = budgets
        if budgets is not None:
            budgets.named = lambda device, why: self.put(OverBudget(device, why))

    def put(self, event: Event | OverBudget | None) -> None:
        """Add ``event``, or drop it; returns at once."""
        if not isinstance(event, Received):
            self._waiting.put("", event)
            return
        device, kind = sender(event.topic)
        if self._budgets is not None and not self._budgets.admits(device, kind, len(event.payload)):
            return
        is_bulk = kind == BULK or (kind in BEHIND_ITS_BULK and self._waiting.has(device, _BULK))
        self._waiting.put(device, event, _BULK if is_bulk else _FIRST)

    def get(self) -> Event | OverBudget | None:
        """The next event, waited for."""
        return self._waiting.get()

    def get_nowait(self) -> Event | OverBudget | None:
        """The next event.

        Raises:
            queue.Empty: there is none.
        """
        return self._waiting.get_nowait()

"""What a leader has in place of a connection where shards are served by their holders: the ledger, looked at often.

It plans, sums and commits; orders that it writes are sent by whoever holds a device's shard, and what devices say is in
the ledger when it counts.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from coordinator.blob_store import BlobStore
from coordinator.publisher import Publisher
from coordinator.shard_service import ShardService
from coordinator.shards import shard_of
from edge.contracts.messages import Ack, Error
from edge.contracts.plan import WorkOrder
from edge.transport.base import Event, Qos

LOOK_S = 0.2
"""How often the leader looks what has come."""


class LedgerArrivals:
    """In place of an inbox: :class:`coordinator.federation.Arrivals` by looking again."""

    def __init__(self) -> None:
        self._news = threading.Event()

    def wait(self, timeout_s: float) -> None:
        """Return when something may have changed in the ledger."""
        self._news.wait(min(timeout_s, LOOK_S))
        self._news.clear()

    def notify(self) -> None:
        """Wakes :meth:`wait`."""
        self._news.set()

    def announce(self, device: str) -> None:
        """Nothing: the holder of the device's shard repeats its order."""

    def at_rest(self) -> AbstractContextManager[object]:
        """Nothing: rounds are synchronous, and between them no assignment is open that a holder could record."""
        return contextlib.nullcontext()


class LeaderPublisher(Publisher):
    """Sends nothing itself: orders, and acknowledgements of what is over, are sent by who finds them in the ledger."""

    def __init__(self, federation: str, blobs: BlobStore, service: ShardService, shards: int) -> None:
        super().__init__(federation, blobs, _Nowhere())
        self._service = service
        self._shards = shards

    def order(self, order: WorkOrder, *, deadline_s: float) -> None:
        """The order is in the ledger: shards that are served here need not wait until they look."""
        self._service.nudge()

    def ack(self, device: str, ack: Ack) -> None:
        """As :meth:`order`."""
        self._service.nudge()

    def error(self, device: str, error: Error) -> None:
        """To devices of the shards that are served here; every process says it to its own in its turn."""
        desk = self._service.desk_of(shard_of(device, self._shards))
        if desk is not None:
            desk.publisher.error(device, error)


class _Nowhere:
    """A connection of a process that has none."""

    def start(self, deliver: Callable[[Event], None]) -> None:
        """Nothing."""

    def publish(self, topic: str, payload: bytes, *, qos: Qos = 1) -> None:
        """Nothing."""

    def stop(self, farewell: tuple[str, bytes] | None = None) -> None:
        """Nothing."""

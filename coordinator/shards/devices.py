"""Devices whose shards are served by their holders: a leader reads the ledger and writes what is to be sent into it."""

from __future__ import annotations

import threading

from coordinator.ledger.records import Assignment
from coordinator.messaging.cohort import Cohort
from coordinator.rounds.remote_devices import RemoteDevices
from coordinator.rounds.round_clock import RoundClock
from coordinator.shards.membership import shard_of
from coordinator.shards.service import ShardService
from edge.contracts.messages import Error
from edge.contracts.plan import WorkOrder

LOOK_S = 0.2
"""How often the leader looks what has come."""


class ShardedDevices(RemoteDevices):
    """Orders, and acknowledgements of what is over, are sent by whoever holds a device's shard and finds them there.

    Rounds are synchronous: between them no assignment is open that a holder could record.
    """

    def __init__(self, cohort: Cohort, service: ShardService, shards: int) -> None:
        super().__init__(cohort, RoundClock())
        self._service = service
        self._shards = shards
        self._news = threading.Event()

    def send(self, order: WorkOrder, *, deadline_s: float) -> None:
        """As :meth:`RemoteDevices.send`; shards that are served here need not wait until they look."""
        self._service.nudge()

    def wait(self, timeout_s: float) -> None:
        """As :meth:`Devices.wait`: when something may have changed in the ledger."""
        self._news.wait(min(timeout_s, LOOK_S))
        self._news.clear()

    def notify(self) -> None:
        """As :meth:`RemoteDevices.notify`."""
        self._news.set()

    def dismiss(self, entry: Assignment, why: str) -> None:
        """As :meth:`Devices.dismiss`."""
        self._service.nudge()

    def tell(self, device: str, error: Error) -> None:
        """As :meth:`Devices.tell`: those of the shards that are served here; every process tells its own."""
        handler = self._service.handler_of(shard_of(device, self._shards))
        if handler is not None:
            handler.publisher.error(device, error)

"""Starts the broker of a run again when it ends by itself: devices and coordinator then go on where they were."""

from __future__ import annotations

import logging
import threading

from coordinator.broker_process import BrokerProcess
from edge.contracts.errors import BrokerUnreachable

log = logging.getLogger("apportion.broker")
LOOK_S = 0.5
"""How often it is looked at; both sides wait at least a second before they connect again."""


class BrokerKeeper:
    """Looks after ``broker`` while the context is open, which is within the broker's own.

    One thread does all of it and stays until the end: to the kernel it is the parent of the brokers it starts, and they
    end with it.
    """

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="broker keeper", daemon=True)

    def __enter__(self) -> BrokerKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._over.wait(LOOK_S):
            try:
                status = self._broker.revive()
            except (BrokerUnreachable, OSError) as error:
                log.warning("the broker ended and does not start; it is tried again: %s", error)
                continue
            if status is not None:
                log.warning("the broker ended with status %d and was started again", status)

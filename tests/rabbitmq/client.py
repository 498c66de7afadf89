"""A connection to a cluster with what it received, through the transport that agents and coordinators have."""

from __future__ import annotations

import queue
import time
from dataclasses import replace

from coordinator.brokers.broker_files import ClientFiles
from edge.transport.base import Connected, Disconnected, Event, Received
from edge.transport.broker_address import parse_broker
from edge.transport.mqtt import MqttTransport

WAIT_S = 20.0


class Client:
    """``name`` is the one in the certificate; ``client_id``, ``user`` and ``password`` are for impostors."""

    def __init__(
        self,
        url: str,
        ca: str,
        files: ClientFiles | None,
        name: str,
        *filters: str,
        client_id: str = "",
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        certificate, key = (None, None) if files is None else (str(files.certificate), str(files.key))
        address = replace(parse_broker(url, ca=ca, certificate=certificate, key=key), username=user, password=password)
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.transport = MqttTransport(
            address, client_id=client_id or address.client_id(name, name), subscriptions=filters, connect_timeout_s=8
        )
        self.transport.start(self.events.put)
        self.wait_until(Connected)

    def wait_until(self, kind: type[Event], timeout_s: float = WAIT_S) -> Event:
        """The next event of that kind."""
        give_up_at = time.monotonic() + timeout_s
        while True:
            event = self.events.get(timeout=max(0.01, give_up_at - time.monotonic()))
            if isinstance(event, kind):
                return event

    def wait_for(self, topic: str) -> None:
        """Until a message on ``topic``; one on another topic before it is a failure."""
        event = self.wait_until(Received)
        assert isinstance(event, Received)
        assert event.topic == topic

    def heard(self, timeout_s: float) -> list[str]:
        """Topics of what came until nothing more did for ``timeout_s``."""
        found = []
        while True:
            try:
                event = self.events.get(timeout=timeout_s)
            except queue.Empty:
                return found
            if isinstance(event, Received):
                found.append(event.topic)
            elif isinstance(event, Disconnected):
                found.append("disconnected")

"""A broker inside one process, with MQTT's semantics as far as this project relies on them.

Wildcards, QoS 0 and 1, last wills, per-topic order, and a broker that can go away and come back. Used by tests and by
simulations that run agents in one process; nothing is persisted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from edge.contracts.envelope import MAX_MESSAGE_BYTES
from edge.contracts.errors import BrokerUnreachable, MessageRejected
from edge.transport.base import Connected, Disconnected, Event, LastWill, Qos, Received


class InMemoryBroker:
    """Routes messages between :class:`InMemoryTransport` objects of one process; thread-safe.

    Attributes:
        drop: when set, messages for which it returns True are lost (topic, payload, qos), as QoS 0 ones may be.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._clients: list[InMemoryTransport] = []
        self._is_up = True
        self.drop: Callable[[str, bytes, Qos], bool] | None = None

    def stop(self) -> None:
        """Cut every connection and refuse new ones."""
        with self._lock:
            self._is_up = False
            for client in self._clients:
                client.lost("broker stopped")

    def start(self) -> None:
        """Take connections again; the clients reconnect at once and resend what was not delivered."""
        with self._lock:
            self._is_up = True
            for client in self._clients:
                client.regained()

    def join(self, client: InMemoryTransport) -> None:
        """Connect ``client``.

        Raises:
            BrokerUnreachable: the broker is stopped.
        """
        with self._lock:
            if not self._is_up:
                raise BrokerUnreachable("in-memory broker is stopped; start it first")
            self._clients.append(client)

    def leave(self, client: InMemoryTransport, *, with_will: bool) -> None:
        """Disconnect ``client``; ``with_will`` as if its process had died."""
        with self._lock:
            if client in self._clients:
                self._clients.remove(client)
                if with_will and client.will is not None:
                    self.route(client.will.topic, client.will.payload, 1)

    def route(self, topic: str, payload: bytes, qos: Qos) -> bool:
        """Deliver to every matching subscriber; False when the broker is down."""
        with self._lock:
            if not self._is_up:
                return False
            if self.drop is not None and self.drop(topic, payload, qos):
                return True
            for client in self._clients:
                if any(topic_matches(pattern, topic) for pattern in client.subscriptions):
                    client.received(topic, payload)
            return True


class InMemoryTransport:
    """One connection to an :class:`InMemoryBroker`."""

    def __init__(self, broker: InMemoryBroker, *, subscriptions: Iterable[str], will: LastWill | None = None) -> None:
        self.subscriptions = tuple(subscriptions)
        self.will = will
        self._broker = broker
        self._deliver: Callable[[Event], None] | None = None
        self._unsent: list[tuple[str, bytes]] = []

    def start(self, deliver: Callable[[Event], None]) -> None:
        """As :meth:`edge.transport.base.Transport.start`."""
        self._deliver = deliver
        self._broker.join(self)
        deliver(Connected())

    def publish(self, topic: str, payload: bytes, *, qos: Qos = 1) -> None:
        """As :meth:`edge.transport.base.Transport.publish`."""
        if len(payload) > MAX_MESSAGE_BYTES:
            raise MessageRejected(f"{topic}: {len(payload)} bytes are over {MAX_MESSAGE_BYTES}; send them as blocks")
        if not self._broker.route(topic, payload, qos) and qos == 1:
            self._unsent.append((topic, payload))

    def stop(self, farewell: tuple[str, bytes] | None = None) -> None:
        """As :meth:`edge.transport.base.Transport.stop`."""
        if farewell is not None:
            self.publish(*farewell)
        self._broker.leave(self, with_will=False)
        self._deliver = None

    def die(self) -> None:
        """Vanish without a goodbye: the broker publishes the last will."""
        self._deliver = None
        self._broker.leave(self, with_will=True)

    def received(self, topic: str, payload: bytes) -> None:
        """Called by the broker."""
        if self._deliver is not None:
            self._deliver(Received(topic, payload))

    def lost(self, reason: str) -> None:
        """Called by the broker when it goes down."""
        if self._deliver is not None:
            self._deliver(Disconnected(reason))

    def regained(self) -> None:
        """Called by the broker when it is back."""
        if self._deliver is not None:
            self._deliver(Connected())
        unsent, self._unsent = self._unsent, []
        for topic, payload in unsent:
            self.publish(topic, payload)


def topic_matches(pattern: str, topic: str) -> bool:
    """Whether ``topic`` is covered by the subscription ``pattern`` (``+`` one level, ``#`` the rest)."""
    levels = topic.split("/")
    for index, part in enumerate(pattern.split("/")):
        if part == "#":
            return True
        if index >= len(levels) or part not in ("+", levels[index]):
            return False
    return len(levels) == len(pattern.split("/"))

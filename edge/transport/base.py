"""What a connection to the broker gives its owner: three events in, publishes out, no protocol words.

A transport hands events over from its own thread and never blocks there: the owner's ``deliver`` puts them in a queue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

Qos = Literal[0, 1]


@dataclass(frozen=True)
class Connected:
    """The broker has taken the connection and every subscription; also after each reconnect."""


@dataclass(frozen=True)
class Disconnected:
    """The connection is gone; the transport is already trying again."""

    reason: str


@dataclass(frozen=True)
class Received:
    """One message."""

    topic: str
    payload: bytes


Event = Connected | Disconnected | Received


@dataclass(frozen=True)
class LastWill:
    """What the broker publishes (QoS 1) when this connection ends without a goodbye."""

    topic: str
    payload: bytes


class Transport(Protocol):
    """One outbound connection with fixed subscriptions."""

    def start(self, deliver: Callable[[Event], None]) -> None:
        """Connect, subscribe and keep connected until :meth:`stop`.

        Raises:
            BrokerUnreachable: no connection the first time; later losses are retried forever.
            AccessDenied: the broker refused these credentials or subscriptions the first time.
        """

    def publish(self, topic: str, payload: bytes, *, qos: Qos = 1) -> None:
        """Hand ``payload`` over for sending; returns at once.

        QoS 1 is kept over a reconnect until the broker took it. QoS 0 is lost when there is no connection.

        Raises:
            MessageRejected: over the size limit; a broker would drop it and still acknowledge it.
        """

    def stop(self, farewell: tuple[str, bytes] | None = None) -> None:
        """Publish ``farewell`` (topic, payload), wait briefly for it to leave, and disconnect."""

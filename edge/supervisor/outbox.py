"""What a device sends: sealed, on its own topics, and only while there is a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge.contracts import topics
from edge.contracts.envelope import seal
from edge.contracts.messages import Bye
from edge.transport.base import LastWill, Qos, Transport


class Outbox:
    """Sends for one device of one federation.

    Attributes:
        is_connected: kept by the owner. Without a connection nothing is queued: hello and the messages that are
            repeated until answered say it all again afterwards.
    """

    def __init__(self, transport: Transport, federation: str, device: str) -> None:
        self._transport = transport
        self._federation = federation
        self._device = device
        self.is_connected = False

    def send(
        self,
        kind: str,
        body: Any,
        qos: Qos = 1,
        message_id: str | None = None,
        sign: Callable[[bytes], bytes] | None = None,
    ) -> None:
        """Send one message, with what ``sign`` gives for its body; lost when there is no connection."""
        if self.is_connected:
            topic = topics.up(self._federation, self._device, kind)
            self._transport.publish(topic, seal(kind, body, message_id=message_id, sign=sign), qos=qos)

    def close(self, reason: str) -> None:
        """Say goodbye and disconnect."""
        farewell = farewell_message(self._federation, self._device, reason)
        self._transport.stop((farewell.topic, farewell.payload) if self.is_connected else None)


def farewell_message(federation: str, device: str, reason: str) -> LastWill:
    """The ``bye`` of a device; as its last will the reason is ``connection lost``."""
    return LastWill(topics.up(federation, device, "bye"), seal("bye", Bye(reason)))

"""MQTT 3.1.1 packets out of a stream of bytes, as they pass a relay; publishes can be looked into and changed."""

from __future__ import annotations

from dataclasses import dataclass, replace

_PUBLISH = 3
_PUBACK = 4
_DUPLICATE = 0x08


@dataclass(frozen=True)
class Packet:
    """One packet as it was on the wire.

    Attributes:
        first: its first byte: type and flags.
        body: everything behind its length.
    """

    first: int
    body: bytes

    @property
    def is_publish(self) -> bool:
        """Whether it carries a message."""
        return self.first >> 4 == _PUBLISH

    @property
    def qos(self) -> int:
        """Of a publish."""
        return self.first >> 1 & 3

    @property
    def topic(self) -> str:
        """Of a publish."""
        return self.body[2 : self._topic_end].decode()

    @property
    def payload(self) -> bytes:
        """Of a publish."""
        return self.body[self._payload_start :]

    @property
    def _topic_end(self) -> int:
        return 2 + int.from_bytes(self.body[:2], "big")

    @property
    def _payload_start(self) -> int:
        return self._topic_end + (2 if self.qos else 0)

    def with_payload(self, payload: bytes) -> Packet:
        """The same publish with another payload."""
        return replace(self, body=self.body[: self._payload_start] + payload)

    def again(self) -> Packet:
        """The publish as it is sent a second time: at QoS 1 it says so."""
        return replace(self, first=self.first | _DUPLICATE) if self.qos else self

    def acknowledgement(self) -> Packet | None:
        """What whoever receives the publish answers; None at QoS 0."""
        return Packet(_PUBACK << 4, self.body[self._topic_end : self._payload_start]) if self.qos else None

    def to_bytes(self) -> bytes:
        """As it is on the wire."""
        length, sizes = len(self.body), bytearray()
        while True:
            length, low = length >> 7, length & 0x7F
            sizes.append(low | (0x80 if length else 0))
            if not length:
                return bytes([self.first, *sizes]) + self.body


class Framer:
    """Cuts a stream into packets; feed it bytes as they come."""

    def __init__(self) -> None:
        self._left = b""

    def feed(self, data: bytes) -> list[Packet]:
        """The packets that are complete with ``data``."""
        self._left += data
        packets = []
        while (packet := self._next()) is not None:
            packets.append(packet)
        return packets

    def _next(self) -> Packet | None:
        length, at = 0, 1
        while True:
            if at >= len(self._left) or at > 4:
                return None
            byte = self._left[at]
            length |= (byte & 0x7F) << 7 * (at - 1)
            at += 1
            if byte < 0x80:
                break
        if len(self._left) < at + length:
            return None
        packet = Packet(self._left[0], self._left[at : at + length])
        self._left = self._left[at + length :]
        return packet

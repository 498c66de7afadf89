"""MQTT 3.1.1 packets of a client that connects, subscribes, publishes with QoS 0 and 1, and pings; bytes in, bytes out.

Small on purpose: a connection costs its socket and a few hundred bytes, so that one process carries thousands (paho
uses ``select()`` and a thread, about 300 a process). Sizes are checked before anything is kept.
Source: MQTT Version 3.1.1, OASIS Standard, sections 2.2 and 3.1 to 3.14.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge.contracts.envelope import MAX_MESSAGE_BYTES
from edge.contracts.errors import MessageRejected

MAX_PACKET_BYTES = MAX_MESSAGE_BYTES + 1024
"""As the broker is configured: one message, its topic and its header."""

CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP = 2, 3, 4, 9, 13
PINGREQ_BYTES, DISCONNECT_BYTES = b"\xc0\x00", b"\xe0\x00"
_ACCEPTED_QOS = (0, 1)


@dataclass(frozen=True, slots=True)
class Published:
    """A PUBLISH from the broker; ``packet_id`` is 0 with QoS 0, and to be acknowledged otherwise."""

    topic: str
    payload: bytes
    packet_id: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Any other packet: its kind, and its code (CONNACK's or SUBACK's; 0 is success) or packet id (PUBACK)."""

    kind: int
    value: int


def connect(
    client_id: str, *, keepalive_s: int, user: str = "", password: str = "", will: tuple[str, bytes] | None = None
) -> bytes:
    """CONNECT with a clean session; ``will`` is (topic, payload), published with QoS 1."""
    flags, payload = 0x02, _text(client_id)
    if will is not None:
        flags |= 0x04 | 0x08
        payload += _text(will[0]) + _binary(will[1])
    if user:
        flags |= 0x80
        payload += _text(user)
    if user and password:
        flags |= 0x40
        payload += _text(password)
    return _packet(0x10, _text("MQTT") + bytes([4, flags]) + keepalive_s.to_bytes(2, "big") + payload)


def subscribe(filters: tuple[str, ...], packet_id: int) -> bytes:
    """SUBSCRIBE to ``filters`` with QoS 1."""
    return _packet(0x82, packet_id.to_bytes(2, "big") + b"".join(_text(name) + b"\x01" for name in filters))


def publish(topic: str, payload: bytes, *, packet_id: int = 0) -> bytes:
    """PUBLISH, with QoS 1 when ``packet_id`` is not 0.

    Raises:
        MessageRejected: more than a broker lets through; it would acknowledge it and drop it.
    """
    if len(payload) > MAX_MESSAGE_BYTES:
        raise MessageRejected(f"{topic}: {len(payload)} bytes are over {MAX_MESSAGE_BYTES}; send them as blocks")
    head = _text(topic) + (packet_id.to_bytes(2, "big") if packet_id else b"")
    return b"".join((_header(0x32 if packet_id else 0x30, len(head) + len(payload)), head, payload))


def puback(packet_id: int) -> bytes:
    """PUBACK."""
    return b"\x40\x02" + packet_id.to_bytes(2, "big")


class Reader:
    """Turns a stream of bytes into packets; what is not complete yet is kept, at most one packet."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def feed(self, data: bytes) -> list[Published | Answer]:
        """The packets that ``data`` completes.

        Raises:
            MessageRejected: no packet a broker sends to such a client, or one over :data:`MAX_PACKET_BYTES`.
        """
        if self._kept:
            self._kept += data
            data = bytes(self._kept)
        packets: list[Published | Answer] = []
        start = 0
        while (found := _bounds(data, start)) is not None:
            body, end = found
            packets.append(_parse(data[start], data[body:end]))
            start = end
        self._kept = bytearray(data[start:])
        return packets


def _bounds(data: bytes, start: int) -> tuple[int, int] | None:
    """Where the packet at ``start`` has its body and its end; None until all of it is here."""
    length = 0
    for index in range(4):
        at = start + 1 + index
        if at >= len(data):
            return None
        length |= (data[at] & 0x7F) << (7 * index)
        if not data[at] & 0x80:
            if length > MAX_PACKET_BYTES:
                raise MessageRejected(
                    f"packet of {length} bytes, at most {MAX_PACKET_BYTES} expected; check the broker"
                )
            return (at + 1, at + 1 + length) if at + 1 + length <= len(data) else None
    raise MessageRejected("packet length of more than four bytes; is it an MQTT broker?")


def _parse(first: int, body: bytes) -> Published | Answer:
    kind = first >> 4
    if kind == PUBLISH:
        qos = (first >> 1) & 3
        size = int.from_bytes(body[:2], "big")
        after = 2 + size + (2 if qos else 0)
        if qos not in _ACCEPTED_QOS or len(body) < after:
            raise MessageRejected(f"PUBLISH of {len(body)} bytes with QoS {qos} cannot be read; check the broker")
        topic = body[2 : 2 + size].decode("utf-8", "replace")
        return Published(topic, body[after:], int.from_bytes(body[2 + size : after], "big"))
    if kind == CONNACK and len(body) == 2:
        return Answer(kind, body[1])
    if kind == SUBACK and len(body) >= 3:
        return Answer(kind, max(body[2:]))
    if kind == PUBACK and len(body) == 2:
        return Answer(kind, int.from_bytes(body, "big"))
    if kind == PINGRESP and not body:
        return Answer(kind, 0)
    raise MessageRejected(f"packet kind {kind} with {len(body)} bytes is none that a broker sends here")


def _packet(first: int, body: bytes) -> bytes:
    return _header(first, len(body)) + body


def _header(first: int, length: int) -> bytes:
    header = bytearray([first])
    while True:
        length, low = length >> 7, length & 0x7F
        header.append(low | (0x80 if length else 0))
        if not length:
            return bytes(header)


def _text(text: str) -> bytes:
    return _binary(text.encode())


def _binary(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data

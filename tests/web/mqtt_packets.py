"""MQTT 3.1.1 packets of a client, out of the bytes it sent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "connect", "publish", "puback", "pubrec", "pubrel", "pubcomp", "subscribe", "unsubscribe", "pingreq", "disconnect"
]
KINDS: dict[int, Kind] = {
    1: "connect", 3: "publish", 4: "puback", 5: "pubrec", 6: "pubrel", 7: "pubcomp", 8: "subscribe",
    10: "unsubscribe", 12: "pingreq", 14: "disconnect",
}  # fmt: skip
DUPLICATE = 0x08


@dataclass(frozen=True)
class Packet:
    """One packet; ``topic`` and ``payload`` are those of a publish, and empty in all others."""

    kind: Kind
    topic: str = ""
    payload: bytes = b""
    is_duplicate: bool = False


def packets(data: bytes) -> Iterator[Packet]:
    """The packets that ``data`` is made of.

    Raises:
        AssertionError: some of it is none.
    """
    at = 0
    while at < len(data):
        first = data[at]
        assert first >> 4 in KINDS, f"byte {at} is {first:#x}, no packet of an MQTT client begins so"
        length, shift, start = 0, 0, at + 1
        while True:
            byte = data[start]
            length |= (byte & 0x7F) << shift
            start, shift = start + 1, shift + 7
            if byte < 0x80:
                break
        end = start + length
        assert end <= len(data), f"the packet at {at} has {length} bytes, {len(data) - start} are there"
        yield _packet(first, data[start:end])
        at = end


def _packet(first: int, body: bytes) -> Packet:
    kind = KINDS[first >> 4]
    if kind == "connect":
        assert body[:7] == b"\x00\x04MQTT\x04", f"begins with {body[:7]!r}, MQTT 3.1.1 expected"
    if kind != "publish":
        return Packet(kind)
    size = int.from_bytes(body[:2], "big")
    topic, after = body[2 : 2 + size].decode(), 2 + size + (2 if first & 0x06 else 0)
    return Packet(kind, topic, body[after:], bool(first & DUPLICATE))

"""Bytes of every device, both ways, between two looks: what was of use, and what it took on the wire.

Payload is bytes of blobs and updates; up, only those that brought an upload further, so that what was sent twice shows
as wire alone. Wire is whole MQTT publications, topic and header included, or bodies over HTTPS; TLS, TCP, IP, HTTP's
headers and the broker's acknowledgements are not in it. What a coordinator counted since it last wrote is lost with it.
"""

from __future__ import annotations

import threading
from typing import Literal

import msgspec

Direction = Literal["up", "down"]
Scheme = Literal["mqtt", "https"]

MOST_SUMS = 400_000
"""Of 100,000 devices, both ways, by two schemes; further names are not counted until the next look."""


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one device, one way, by one scheme.

    Attributes:
        direction: ``up``, from the device; ``down``, to it.
        payload_bytes: of weights, artifacts and updates.
        wire_bytes: of the messages or requests that carried them, headers and repeats included.
    """

    device: str
    direction: Direction
    scheme: Scheme
    payload_bytes: int
    wire_bytes: int


class ByteAccount:
    """Adds up; several threads may."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[tuple[str, Direction, Scheme], tuple[int, int]] = {}

    def add(self, device: str, direction: Direction, scheme: Scheme, *, payload: int = 0, wire: int = 0) -> None:
        """``payload`` and ``wire`` bytes more."""
        with self._lock:
            if (device, direction, scheme) not in self._sums and len(self._sums) >= MOST_SUMS:
                return
            before = self._sums.get((device, direction, scheme), (0, 0))
            self._sums[device, direction, scheme] = before[0] + payload, before[1] + wire

    def take(self) -> list[Traffic]:
        """What was added since the last call."""
        with self._lock:
            sums, self._sums = self._sums, {}
        return [
            Traffic(device=device, direction=direction, scheme=scheme, payload_bytes=payload, wire_bytes=wire)
            for (device, direction, scheme), (payload, wire) in sorted(sums.items())
        ]


def publication_bytes(topic: str, payload_bytes: int, *, qos: int) -> int:
    """Bytes of an MQTT 3.1.1 PUBLISH packet (section 3.3), fixed header included."""
    rest = 2 + len(topic.encode()) + (2 if qos else 0) + payload_bytes
    length_bytes = 1 + (rest > 127) + (rest > 16_383) + (rest > 2_097_151)
    return 1 + length_bytes + rest

"""What a process of light devices counts and times, and how the figures of several become one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

TRIPS = ("probe", "offer-grant", "report-ack")
"""Control round trips: what a device sends -> the coordinator's answer, timed at the device.

``probe``: an ``accept`` of an unknown assignment -> ``ack``; always the shortest work. ``offer-grant``: an update is
offered -> it may be sent, admission included. ``report-ack``: the update is checked and in the ledger."""


class Figures(msgspec.Struct):
    """Counts of one process.

    Attributes:
        counts: of events by name (``orders``, ``acks``, ``reconnects``, ``errors`` ...).
        trips_ms: round trips by name.
        payload_up, payload_down: bytes of updates acknowledged, and of blobs received, whole ones only.
        wire_up, wire_down: bytes through the sockets of devices from order to acknowledgement.
        lag_ms: the longest that this process did not look at its sockets.
        connect_s: from the first connection's begin to the last one's end.
    """

    counts: dict[str, int] = msgspec.field(default_factory=dict)
    trips_ms: dict[str, list[float]] = msgspec.field(default_factory=dict)
    payload_up: int = 0
    payload_down: int = 0
    wire_up: int = 0
    wire_down: int = 0
    socket_sent: int = 0
    socket_received: int = 0
    lag_ms: float = 0.0
    connect_s: float = 0.0
    cpu_s: float = 0.0

    def tally(self, name: str, count: int = 1) -> None:
        """Something happened."""
        self.counts[name] = self.counts.get(name, 0) + count

    def trip(self, name: str, seconds: float) -> None:
        """A control round trip was made."""
        self.trips_ms.setdefault(name, []).append(round(1000 * seconds, 2))


_SUMS = ("payload_up", "payload_down", "wire_up", "wire_down", "socket_sent", "socket_received", "cpu_s")


def together(parts: Iterable[Figures]) -> Figures:
    """The figures of all processes: sums, all trips, and the longest of lag and connecting."""
    whole = Figures()
    for part in parts:
        for name, count in part.counts.items():
            whole.tally(name, count)
        for name, values in part.trips_ms.items():
            whole.trips_ms.setdefault(name, []).extend(values)
        for field in _SUMS:
            setattr(whole, field, getattr(whole, field) + getattr(part, field))
        whole.lag_ms = max(whole.lag_ms, part.lag_ms)
        whole.connect_s = max(whole.connect_s, part.connect_s)
    return whole


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that ``share`` of ``values`` do not exceed; None of none."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def trips_table(trips_ms: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Count, median, 99th percentile and maximum of each round trip."""
    return {
        name: {
            "count": len(values),
            "p50_ms": percentile(values, 0.5),
            "p99_ms": percentile(values, 0.99),
            "max_ms": max(values),
        }
        for name, values in sorted(trips_ms.items())
        if values
    }


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Least-squares slope of y over x; None of fewer than two different x."""
    if len({x for x, _ in points}) < 2:
        return None
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread

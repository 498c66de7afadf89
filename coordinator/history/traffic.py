"""Bytes of a run, from the ledger."""

from __future__ import annotations

from coordinator.history.records import TrafficTotal
from coordinator.ledger.read_only import ReadOnlyLedger


def traffic(ledger: ReadOnlyLedger, device: str) -> tuple[TrafficTotal, ...]:
    """Sums by direction and scheme, of ``device``, or of all where it is empty."""
    rows = ledger.all(
        "SELECT direction, scheme, SUM(payload_bytes), SUM(wire_bytes) FROM traffic "
        f"{'WHERE device = :device ' if device else ''}GROUP BY direction, scheme ORDER BY direction, scheme",
        {"device": device} if device else {},
    )
    return tuple(
        TrafficTotal(direction=row[0], scheme=row[1], payload_bytes=int(row[2]), wire_bytes=int(row[3])) for row in rows
    )

"""Bytes in the ledger: what each device sent and was sent, and what that took on the wire."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coordinator.ledger.database import LedgerPart, statement
from coordinator.ledger.records import from_row
from edge.serving.traffic import Traffic


class TrafficSums(LedgerPart):
    """The table ``traffic``."""

    def add(self, rows: Sequence[Traffic]) -> None:
        """Adds to what is there, all in one transaction."""
        if not rows:
            return
        with self._file.transaction() as sql:
            sql.execute(
                statement(
                    "INSERT INTO traffic VALUES (:device, :direction, :scheme, :payload_bytes, :wire_bytes) "
                    "ON CONFLICT (device, direction, scheme) DO UPDATE SET "
                    "payload_bytes = traffic.payload_bytes + excluded.payload_bytes, "
                    "wire_bytes = traffic.wire_bytes + excluded.wire_bytes"
                ),
                [msgspec.structs.asdict(row) for row in rows],
            )

    def all(self) -> tuple[Traffic, ...]:
        """Sums over the run, by device, direction and scheme."""
        names = Traffic.__struct_fields__
        rows = self._file.all(f"SELECT {', '.join(names)} FROM traffic ORDER BY device, direction, scheme")
        return tuple(from_row(Traffic, row) for row in rows)

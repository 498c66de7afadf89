"""Bytes in the ledger: what each device sent and was sent, and what that took on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from coordinator.ledger_file import LedgerPart, statement


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one device, one way, by one scheme.

    Attributes:
        direction: ``up``, from the device; ``down``, to it.
        payload_bytes: of weights, artifacts and updates.
        wire_bytes: of the messages or requests that carried them, headers and repeats included.
    """

    device: str
    direction: Literal["up", "down"]
    scheme: Literal["mqtt", "https"]
    payload_bytes: int
    wire_bytes: int


class TrafficTables(LedgerPart):
    """The table ``traffic``."""

    def add_traffic(self, rows: Sequence[Traffic]) -> None:
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

    def traffic(self) -> tuple[Traffic, ...]:
        """Sums over the run, by device, direction and scheme."""
        names = Traffic.__struct_fields__
        rows = self._file.all(f"SELECT {', '.join(names)} FROM traffic ORDER BY device, direction, scheme")
        return tuple(Traffic(**dict(zip(names, row, strict=True))) for row in rows)

"""The run's audit log, read in pieces."""

from __future__ import annotations

from typing import Any

import msgspec

from coordinator.history.records import LedgerEvent
from coordinator.ledger.read_only import ReadOnlyLedger


def last_event(ledger: ReadOnlyLedger) -> int:
    """The number of the newest entry; 0: there is none."""
    return int(ledger.one("SELECT COALESCE(MAX(number), 0) FROM audit_log")[0])


def events(ledger: ReadOnlyLedger, since: int, device: str, limit: int) -> tuple[LedgerEvent, ...]:
    """Entries behind number ``since``, in order; those about or by ``device`` where one is given."""
    only, values = "", {"since": since, "limit": limit}
    if device:
        only, values = "AND (subject = :name OR actor = :name) ", {**values, "name": f"device:{device}"}  # type: ignore[dict-item]
    rows = ledger.all(
        "SELECT number, at_ms, actor, action, subject, details FROM audit_log "
        f"WHERE number > :since {only}ORDER BY number LIMIT :limit",
        values,
    )
    return tuple(_event(row) for row in rows)


def _event(row: Any) -> LedgerEvent:
    number, at_ms, actor, action, subject, details = row
    return LedgerEvent(
        number=number,
        at=at_ms / 1000,
        actor=actor,
        action=action,
        subject=subject,
        details=msgspec.json.decode(details, type=dict[str, Any]),
    )

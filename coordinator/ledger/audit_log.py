"""The audit log of a run, in its ledger: an entry is in the transaction of what it records.

What an entry is, and how a log is checked, is :mod:`coordinator.audit_log`'s. The rules between tables are another
matter: :mod:`coordinator.ledger.audit`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection

from coordinator.audit_log import actors
from coordinator.audit_log.chain import Checked, appended, check_entries
from coordinator.audit_log.entry import Entry, Event
from coordinator.ledger.database import LedgerFile, LedgerPart, statement

AT_ONCE = 2000
"""Entries that are read in one piece."""

MOST_NAMED = 10_000
"""Pairs of device and accusation that are counted; with more of them counting begins anew."""

_NAMES = Entry.__struct_fields__
_COLUMNS = ", ".join(_NAMES)
_INSERT = f"INSERT INTO audit_log ({_COLUMNS}) VALUES ({', '.join(f':{name}' for name in _NAMES)})"


class AuditLog(LedgerPart):
    """The table ``audit_log``: rows are added and never changed."""

    def __init__(self, file: LedgerFile) -> None:
        super().__init__(file)
        self._named: Counter[tuple[str, str]] = Counter()

    def act_as(self, actor: str) -> None:
        """From now on what this ledger records was done by ``actor``, where it is nobody else's doing."""
        self._file.actor = actor

    def add(self, action: str, subject: str = "", details: Mapping[str, Any] | None = None, *, actor: str = "") -> None:
        """Adds one entry, in a transaction of its own.

        Args:
            actor: of :mod:`coordinator.audit_log.actors`; else who this ledger acts as.
        """
        with self._file.transaction() as sql:
            append(sql, Event(actor=actor or self._file.actor, action=action, subject=subject, details=details or {}))

    def dropped(self, device: str, what: str, why: str) -> bool:
        """Says that messages in the name of ``device`` were dropped, in a transaction of its own; as often as
        :meth:`named` would.

        It accuses nobody: what is dropped is dropped unread, so whoever carried it may have said it over again.
        """
        return self._named_at(device, what, why, "traffic-dropped", {})

    def named(self, device: str, what: str, why: str, **evidence: Any) -> bool:
        """Names a device that did what no honest one does, in a transaction of its own.

        A device that does the same again is named the 2nd, 4th, 8th, ... time only, with how often it was: nobody fills
        the log.

        Args:
            what: a kebab-case word for it, as ``bad-figure``.
            why: in words, with values.
            evidence: further JSON values by name.

        Returns:
            False when no entry was written: it was named for that before.
        """
        return self._named_at(device, what, why, "device-named", evidence)

    def _named_at(self, device: str, what: str, why: str, action: str, evidence: Mapping[str, Any]) -> bool:
        if len(self._named) >= MOST_NAMED:
            self._named.clear()
        self._named[device, what] += 1
        times = self._named[device, what]
        if times & (times - 1):
            return False
        with self._file.transaction() as sql:
            event = naming(self._file.actor, device, what, why, times=times, **evidence)
            append(sql, msgspec.structs.replace(event, action=action))
        return True

    def entries(self, *, after: int = 0, since_ms: int = 0, device: str = "") -> Iterator[Entry]:
        """Entries in their order.

        Args:
            after: number of the last one that is left out.
            since_ms: earlier ones are left out; milliseconds since 1970.
            device: only those of or about this device.
        """
        which = "AND (actor = :device OR subject = :device) " if device else ""
        values = {"since": since_ms, "count": AT_ONCE} | ({"device": actors.device(device)} if device else {})
        query = (
            f"SELECT {_COLUMNS} FROM audit_log WHERE number > :after AND at_ms >= :since {which}"
            "ORDER BY number LIMIT :count"
        )
        while rows := self._file.all(query, {**values, "after": after}):
            for row in rows:
                yield _entry(row)
            after = rows[-1][0]

    def head(self) -> Entry:
        """The newest entry; every run has one."""
        return _entry(self._file.one(f"SELECT {_COLUMNS} FROM audit_log ORDER BY number DESC LIMIT 1"))

    def checked(self) -> Checked:
        """The whole log, held against its digests; a run without an entry is a finding."""
        found = check_entries(self.entries())
        if found.count:
            return found
        return msgspec.structs.replace(found, findings=("the audit log is empty: entry 1 is missing",))


def append(sql: Connection, *events: Event) -> None:
    """Adds ``events``, in their order, inside the caller's transaction, which is the only writer of the run."""
    if not events:
        return
    last = sql.execute(statement("SELECT number, digest FROM audit_log ORDER BY number DESC LIMIT 1")).first()
    entries = appended(events, None if last is None else (last[0], last[1]))
    sql.execute(statement(_INSERT), [_row(entry) for entry in entries])


def naming(actor: str, device: str, what: str, why: str, **evidence: Any) -> Event:
    """That ``device`` did ``what``, and how that is known."""
    details = {**evidence, "what": what, "why": why}
    return Event(actor=actor, action="device-named", subject=actors.device(device), details=details)


def _row(entry: Entry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in _NAMES} | {"details": bytes(entry.details)}


def _entry(row: Sequence[Any]) -> Entry:
    values = dict(zip(_NAMES, row, strict=True))
    return Entry(**values | {"details": msgspec.Raw(bytes(values["details"]))})

"""The audit log of an identity, in the file of its records: what was issued, revoked and promised, and by whom."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import msgspec

from coordinator.audit_log import actors
from coordinator.audit_log.chain import appended
from coordinator.audit_log.entry import Entry, Event

_TABLE = """CREATE TABLE IF NOT EXISTS audit_log (
    number INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL,
    subject TEXT NOT NULL, details BLOB NOT NULL, previous TEXT NOT NULL, digest TEXT NOT NULL
)"""
_COLUMNS = ", ".join(Entry.__struct_fields__)


def begin(connection: sqlite3.Connection) -> None:
    """Make the table, with its first entry, where it is not there."""
    connection.execute(_TABLE)
    if not connection.execute("SELECT 1 FROM audit_log").fetchone():
        append(connection, "log-begun", "")


def append(connection: sqlite3.Connection, action: str, subject: str, **details: Any) -> None:
    """Add an entry, inside the caller's transaction."""
    last = connection.execute("SELECT number, digest FROM audit_log ORDER BY number DESC LIMIT 1").fetchone()
    event = Event(actor=actors.operator(), action=action, subject=subject, details=details)
    (entry,) = appended([event], last)
    values = [bytes(value) if isinstance(value, msgspec.Raw) else value for value in msgspec.structs.astuple(entry)]
    connection.execute(f"INSERT INTO audit_log ({_COLUMNS}) VALUES ({', '.join('?' * len(values))})", values)


def entries(connection: sqlite3.Connection) -> Iterator[Entry]:
    """All of them, in their order."""
    for row in connection.execute(f"SELECT {_COLUMNS} FROM audit_log ORDER BY number"):
        values = dict(zip(Entry.__struct_fields__, row, strict=True))
        yield Entry(**values | {"details": msgspec.Raw(values["details"])})

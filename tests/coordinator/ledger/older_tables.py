"""The tables of this release as version 5 had them: what version 6 added is taken off again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

_TIMES = {
    "rounds": ("planned_at", "published_at", "aggregating_at", "ended_at"),
    "assignments": ("planned_at", "accepted_at", "answered_at"),
}


def back_to_version_5(path: Path) -> None:
    """Takes the file's tables back; nothing may have it open."""
    columns = [f"ALTER TABLE {table} DROP COLUMN {name}" for table, names in _TIMES.items() for name in names]
    version = ["UPDATE alembic_version SET version_num = 'v5'", "PRAGMA user_version = 5"]
    with closing(sqlite3.connect(path)) as sql:
        sql.executescript(";".join(["DROP INDEX assignments_counted", *columns, *version]))

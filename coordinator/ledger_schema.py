"""The ledger's tables, by version. A change is a new entry in :data:`MIGRATIONS`, never an edit of an old one."""

from __future__ import annotations

import sqlite3

from edge.contracts.errors import LedgerError

_VERSION_1 = """
CREATE TABLE federation (
    id            TEXT PRIMARY KEY,
    config        TEXT NOT NULL,
    config_digest TEXT NOT NULL,
    seed          INTEGER NOT NULL,
    created_at    REAL NOT NULL,
    state         TEXT NOT NULL
) STRICT;

CREATE TABLE profiles (
    device    TEXT PRIMARY KEY,
    profile   BLOB NOT NULL,
    frozen_at REAL NOT NULL
) STRICT;

CREATE TABLE blobs (
    digest     TEXT PRIMARY KEY,
    size       INTEGER NOT NULL,
    created_at REAL NOT NULL
) STRICT;

CREATE TABLE artifacts (
    export_key      TEXT PRIMARY KEY,
    manifest_digest TEXT NOT NULL REFERENCES blobs (digest)
) STRICT;

CREATE TABLE rounds (
    round        INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    state        TEXT NOT NULL,
    deadline_s   REAL NOT NULL,
    participants BLOB NOT NULL,
    model_digest TEXT NOT NULL DEFAULT '',
    metrics      BLOB NOT NULL,
    PRIMARY KEY (round, attempt)
) STRICT;

CREATE TABLE assignments (
    assignment_id   TEXT PRIMARY KEY,
    round           INTEGER NOT NULL,
    attempt         INTEGER NOT NULL,
    device          TEXT NOT NULL,
    level           TEXT NOT NULL,
    cut             BLOB NOT NULL,
    artifact_digest TEXT NOT NULL,
    weights_digest  TEXT NOT NULL,
    work_order      BLOB NOT NULL,
    state           TEXT NOT NULL,
    code            TEXT NOT NULL DEFAULT '',
    reason          TEXT NOT NULL DEFAULT '',
    UNIQUE (round, attempt, device),
    FOREIGN KEY (round, attempt) REFERENCES rounds (round, attempt)
) STRICT;

CREATE TABLE updates (
    assignment_id TEXT PRIMARY KEY REFERENCES assignments (assignment_id),
    update_digest TEXT NOT NULL,
    report        BLOB NOT NULL
) STRICT;

CREATE TABLE measurements (
    device              TEXT NOT NULL,
    export_key          TEXT NOT NULL,
    batch               INTEGER NOT NULL,
    predicted_peak      INTEGER NOT NULL,
    measured_peak       INTEGER NOT NULL,
    step_ms             REAL NOT NULL,
    PRIMARY KEY (device, export_key, batch)
) STRICT;
"""

_VERSION_2 = """
ALTER TABLE assignments ADD COLUMN form TEXT NOT NULL DEFAULT 'plain';

CREATE TABLE setbacks (
    assignment_id TEXT PRIMARY KEY REFERENCES assignments (assignment_id),
    code          TEXT NOT NULL,
    peak          INTEGER NOT NULL,
    memory_limit  INTEGER NOT NULL
) STRICT;
"""

MIGRATIONS: tuple[str, ...] = (_VERSION_1, _VERSION_2)
"""Entry n brings a ledger from version n to n + 1; ``PRAGMA user_version`` says where a file stands."""


def migrate(connection: sqlite3.Connection, *, where: str) -> None:
    """Brings the tables to this release's version, each step in its own transaction.

    Raises:
        LedgerError: the file was written by a newer release.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise LedgerError(
            f"{where}: ledger is of version {version}, this release reads up to {len(MIGRATIONS)}; upgrade apportion"
        )
    for number in range(version, len(MIGRATIONS)):
        connection.executescript(f"BEGIN IMMEDIATE;{MIGRATIONS[number]}PRAGMA user_version = {number + 1};COMMIT;")

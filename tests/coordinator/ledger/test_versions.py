"""Ledgers of other releases: older ones are brought up to date, newer ones and other files refused."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from coordinator.ledger import migrations
from coordinator.ledger.connections import namespace_of
from coordinator.ledger.database import LedgerFile
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.schema import VERSION
from edge.contracts.codec import encode_json
from edge.contracts.errors import LedgerError
from tests.coordinator.ledger.test_rounds import FEDERATION, assignment, collecting, report
from tests.postgres_server import PostgresServer

VERSION_1 = """
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

VERSION_2 = """
ALTER TABLE assignments ADD COLUMN form TEXT NOT NULL DEFAULT 'plain';

CREATE TABLE setbacks (
    assignment_id TEXT PRIMARY KEY REFERENCES assignments (assignment_id),
    code          TEXT NOT NULL,
    peak          INTEGER NOT NULL,
    memory_limit  INTEGER NOT NULL
) STRICT;
"""


def old_ledger(path: Path, version: int) -> None:
    """A file as the release of ``version`` left it: round 0 committed with 2 of 3 updates, round 1 collecting."""
    with closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute("PRAGMA journal_mode = WAL")
        sql.executescript(VERSION_1 + (VERSION_2 if version == 2 else "") + f"PRAGMA user_version = {version};")
        sql.execute("INSERT INTO federation VALUES (?, 'x = 1', ?, 7, 1.5, 'running')", (FEDERATION, "c" * 64))
        sql.execute("INSERT INTO blobs VALUES (?, 3, 1.0)", ("m" * 64,))
        rounds = [(0, 0, "abandoned", []), (0, 1, "committed", ["a", "b"]), (1, 0, "collecting", [])]
        for index, attempt, state, participants in rounds:
            model = "m" * 64 if state == "committed" else ""
            row = (index, attempt, state, 9.0, encode_json(participants), model, b"{}")
            sql.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            for device in ("a", "b", "c"):
                entry = assignment(device, index, attempt)
                values = (entry.assignment_id, index, attempt, device, "1/2", b"{}", "a" * 64, "w" * 64, b"order")
                state_of = "open" if index else "reported"
                sql.execute(
                    "INSERT INTO assignments (assignment_id, round, attempt, device, level, cut, artifact_digest, "
                    "weights_digest, work_order, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (*values, state_of),
                )
                if not index:
                    row_of = (entry.assignment_id, "d" * 64, encode_json(report(entry)))
                    sql.execute("INSERT INTO updates VALUES (?, ?, ?)", row_of)


@pytest.mark.parametrize("version", [1, 2])
def test_older_ledger_is_brought_up_to_date_and_goes_on(version: int, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    old_ledger(path, version)
    with Ledger.open(path) as ledger:
        assert ledger.federation().seed == 7
        assert [u.assignment.device for u in ledger.updates.counted(0, 1)] == ["a", "b"]
        assert [c.weight for c in ledger.updates.weights(0, 1)] == [10.0, 10.0]
        assert ledger.updates.counted(0, 0) == ()
        assert ledger.updates.waiting() == ()
        entry = assignment("b", 1)
        assert {a.form for a in ledger.assignments.open()} == {"plain"}
        assert ledger.updates.record(entry.assignment_id, update_digest="e" * 64, size=2, report=report(entry))
        assert [u.assignment.round for u in ledger.updates.waiting()] == [1]
        ledger.rounds.move(1, 0, "aggregating", participants=["b"])
    with closing(sqlite3.connect(path)) as sql:
        assert sql.execute("PRAGMA user_version").fetchone() == (VERSION,)
        assert sql.execute("SELECT version_num FROM alembic_version").fetchall() == [(f"v{VERSION}",)]
        assert sql.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def shape(path: Path) -> dict[str, object]:
    """Tables, columns, keys and indexes of a file, as SQLite lists them."""
    with closing(sqlite3.connect(path)) as sql:
        tables = sql.execute(
            "SELECT name, strict FROM pragma_table_list WHERE schema = 'main' ORDER BY name"
        ).fetchall()
        return {
            name: (
                strict,
                [row[1:4] for row in sql.execute(f"PRAGMA table_info({name})")],
                sorted(row[2:5] for row in sql.execute(f"PRAGMA foreign_key_list({name})")),
                sorted(row[2:] for row in sql.execute(f"PRAGMA index_list({name})")),
            )
            for name, strict in tables
            if not name.startswith("sqlite_")
        }


@pytest.mark.parametrize("version", [1, 2])
def test_older_ledger_gets_the_tables_of_a_new_one(version: int, tmp_path: Path) -> None:
    old_ledger(tmp_path / "old.sqlite", version)
    Ledger.open(tmp_path / "old.sqlite").close()
    Ledger.create(tmp_path / "new.sqlite", federation=FEDERATION, config="", seed=0).close()
    old, new = shape(tmp_path / "old.sqlite"), shape(tmp_path / "new.sqlite")
    for table in ("federation", "blobs", "measurements"):  # keys of the first release may be NULL, as SQLite lets them
        old[table] = new[table] = "compared by hand"
    assert old == new


def test_upgrade_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    old_ledger(path, 2)
    with closing(sqlite3.connect(path)) as sql:
        sql.execute("UPDATE updates SET report = ?", (b"{}",))
        sql.commit()
    before = shape(path)
    with pytest.raises(KeyError, match="num_examples"):
        Ledger.open(path)
    assert shape(path) == before
    with closing(sqlite3.connect(path)) as sql:
        assert sql.execute("PRAGMA user_version").fetchone() == (2,)


def test_migrations_end_at_the_version_of_this_release() -> None:
    (folder,) = migrations.__path__
    assert ScriptDirectory(folder).get_heads() == [f"v{VERSION}"]


def test_newer_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path, federation=FEDERATION, config="", seed=0).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(LedgerError, match=f"version {VERSION + 1}.*upgrade"):
        Ledger.open(path)


def test_newer_tables_in_postgresql_are_refused(postgres_server: PostgresServer) -> None:
    address = postgres_server.new_database()
    with Ledger.create(address, federation=FEDERATION, config="", seed=0) as ledger:
        with ledger._file.transaction() as sql:
            sql.exec_driver_sql(f"UPDATE alembic_version SET version_num = 'v{VERSION + 1}'")
    with pytest.raises(LedgerError, match=f"version {VERSION + 1}.*upgrade"):
        Ledger.open(address, federation=FEDERATION)


def test_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(b"not a database, but long enough to have a header of its own" * 20)
    with pytest.raises(LedgerError, match=r"cannot be opened .*not a database"):
        Ledger.open(path)


def test_file_is_synced_at_every_commit(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "ledger.sqlite", federation=FEDERATION, config="", seed=0).close()
    file = LedgerFile(tmp_path / "ledger.sqlite")
    values = [file.all(f"PRAGMA {name}") for name in ("synchronous", "journal_mode", "foreign_keys")]
    file.close()
    assert values == [[(2,)], [("wal",)], [(1,)]]


def test_postgresql_is_synced_at_every_commit_whatever_its_configuration(postgres_server: PostgresServer) -> None:
    address = postgres_server.new_database()
    name = address.rpartition("/")[2]
    postgres_server.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    with Ledger.create(address, federation=FEDERATION, config="", seed=0) as ledger:
        assert ledger._file.one("SHOW synchronous_commit") == ("on",)


def test_runs_share_a_postgresql_database_without_seeing_each_other(postgres_server: PostgresServer) -> None:
    address = postgres_server.new_database()
    names = ["one", "One", "n" * 64, "n" * 63 + "m", 'odd".name']
    ledgers = [Ledger.create(address, federation=name, config=name, seed=0) for name in names]
    collecting(ledgers[0], "a")
    assert [len(ledger.rounds.all()) for ledger in ledgers] == [1, 0, 0, 0, 0]
    for ledger in ledgers:
        ledger.close()
    assert len({namespace_of(name) for name in names}) == len(names)
    with Ledger.open(address, federation="One") as again:
        assert again.federation().config == "One"
    with pytest.raises(LedgerError, match="no ledger of that name here"):
        Ledger.open(address, federation="two")
    assert json.dumps(address) not in repr(names)


def test_address_of_something_else_is_refused_without_its_password() -> None:
    with pytest.raises(LedgerError, match="no ledger can be kept in 'mysql'") as caught:
        Ledger.open("mysql://me:secret@host/db", federation="fed")
    assert "secret" not in str(caught.value)


def test_server_that_does_not_answer_is_named_without_its_password() -> None:
    with pytest.raises(
        LedgerError, match=r"postgresql\+psycopg://me:\*\*\*@127\.0\.0\.1:9/db: ledger cannot"
    ) as caught:
        Ledger.open("postgresql://me:secret@127.0.0.1:9/db", federation="fed")
    assert "secret" not in str(caught.value)

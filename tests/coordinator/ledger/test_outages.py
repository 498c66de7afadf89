"""A database that goes away or has no room: a clear error, nothing changed, and the next write goes on by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.ledger import connections
from coordinator.ledger.ledger import Ledger
from edge.contracts.errors import LedgerError
from tests.coordinator.ledger.test_rounds import FEDERATION, assignment, collecting, report
from tests.postgres_server import PostgresServer, missing_postgres, running_server

SMALL_DISK = "1536k"


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that this test may end."""
    if reason := missing_postgres():
        pytest.skip(reason)
    with running_server() as server:
        yield server


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1.5 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(folder)]
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("a small file system takes root and mount")
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_server_that_crashes_and_comes_back_is_used_again(own_server: PostgresServer) -> None:
    with Ledger.create(own_server.new_database(), federation=FEDERATION, config="", seed=0) as ledger:
        first, second = collecting(ledger, "a", "b")
        ledger.updates.record(first.assignment_id, update_digest="d" * 64, size=1, report=report(first))
        own_server.kill()
        with pytest.raises(LedgerError, match=r"not written \(.*; nothing changed"):
            ledger.updates.record(second.assignment_id, update_digest="e" * 64, size=1, report=report(second))
        with pytest.raises(LedgerError, match=r"cannot be read .*check the disk or server"):
            ledger.rounds.all()
        own_server.start()
        assert ledger.updates.devices(0, 0) == ("a",)
        ledger.updates.record(second.assignment_id, update_digest="e" * 64, size=1, report=report(second))
        assert ledger.updates.devices(0, 0) == ("a", "b")


def test_connection_that_is_cut_within_a_write_changes_nothing(postgres_server: PostgresServer) -> None:
    address = postgres_server.new_database()
    name = address.rpartition("/")[2]
    with Ledger.create(address, federation=FEDERATION, config="", seed=0) as ledger:

        def write_and_be_cut_off() -> None:
            with ledger._file.transaction() as sql:
                sql.exec_driver_sql("INSERT INTO wishes VALUES ('control', 'stop', 1.0)")
                postgres_server.execute(
                    f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
                )
                sql.exec_driver_sql("INSERT INTO wishes VALUES ('other', 'stop', 1.0)")

        with pytest.raises(LedgerError, match=r"not written \(.*terminat.*; nothing changed"):
            write_and_be_cut_off()
        assert ledger.requests.find("control") is None
        ledger.requests.put("control", "pause")
        assert ledger.requests.find("control") == "pause"


@pytest.mark.slow
def test_coordinator_that_stands_still_within_a_write_does_not_hold_up_the_other(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PAUSED_S", 1)
    address = postgres_server.new_database()
    with (
        Ledger.create(address, federation=FEDERATION, config="", seed=0) as paused,
        Ledger.open(address, federation=FEDERATION) as other,
    ):

        def stand_still() -> None:
            with paused._file.transaction() as sql:
                sql.exec_driver_sql("INSERT INTO wishes VALUES ('control', 'stop', 1.0)")
                started = time.monotonic()
                other.requests.put("control", "run")
                assert time.monotonic() - started < 20

        with pytest.raises(LedgerError, match=r"not written \(.*idle-in-transaction timeout.*; nothing changed"):
            stand_still()
        assert paused.requests.find("control") == "run"


def test_writes_of_two_coordinators_wait_for_each_other(ledger_place: Path | str) -> None:
    with (
        Ledger.create(ledger_place, federation=FEDERATION, config="", seed=0) as one,
        Ledger.open(ledger_place, federation=FEDERATION) as two,
    ):
        entries = collecting(one, *(f"d{number}" for number in range(20)))
        counted: list[bool] = []

        def record(ledger: Ledger) -> None:
            for entry in entries:
                counted.append(
                    ledger.updates.record(
                        entry.assignment_id, update_digest=entry.assignment_id, size=1, report=report(entry)
                    )
                )

        threads = [threading.Thread(target=record, args=(ledger,)) for ledger in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (counted.count(True), counted.count(False)) == (20, 20)


def test_write_within_a_write_is_refused(ledger_place: Path | str) -> None:
    with Ledger.create(ledger_place, federation=FEDERATION, config="", seed=0) as ledger:
        with pytest.raises(LedgerError, match="a write within a write"):
            with ledger._file.transaction():
                ledger.blobs.add("a" * 64, 1)
        assert ledger.blobs.sizes() == {}


def test_closed_ledger_is_not_reopened_by_use(ledger_place: Path | str) -> None:
    ledger = Ledger.create(ledger_place, federation=FEDERATION, config="", seed=0)
    ledger.close()
    with pytest.raises(LedgerError, match="the ledger was closed; open it again"):
        ledger.rounds.all()
    with pytest.raises(LedgerError, match="the ledger was closed; open it again"):
        ledger.blobs.add("a" * 64, 1)


def test_full_disk_changes_nothing_and_space_lets_it_go_on(small_disk: Path) -> None:
    filler = small_disk / "filler"
    with Ledger.create(small_disk / "ledger.sqlite", federation=FEDERATION, config="", seed=0) as ledger:
        filler.write_bytes(b"x" * 200_000)
        entries = collecting(ledger, *(f"d{number:04}" for number in range(20)))
        recorded = 0
        more = [assignment(f"m{number:05}") for number in range(5000)]
        with pytest.raises(LedgerError, match=r"not written \(database or disk is full\).*free disk space"):
            ledger.rounds.extend(0, 0, more)
        assert len(ledger.assignments.of_attempt(0, 0)) == 20
        assert ledger.audit.findings()[0].startswith(
            f"assignment {entries[0].assignment_id}"
        )  # its weights were never added
        filler.unlink()
        for entry in entries:
            recorded += ledger.updates.record(
                entry.assignment_id, update_digest=entry.assignment_id, size=1, report=report(entry)
            )
        assert recorded == 20
        assert ledger.audit.findings() == []

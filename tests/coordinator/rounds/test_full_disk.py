"""A disk that is full at each single write of a run's blobs and ledger: the run stops, and goes on to the same bits."""

from __future__ import annotations

import dataclasses
import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy.exc import OperationalError

from coordinator.config.canonical import canonical_toml
from coordinator.ledger.database import LedgerFile
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import RecordedUpdate
from coordinator.rounds.federation import Federation
from coordinator.rounds.global_model import decode_state, encode_state
from coordinator.rounds.run import run_rounds
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.values import Update
from edge.contracts.errors import LedgerError, StoreFull, StoreUnreachable
from tests.coordinator.ledger.test_rounds import report
from tests.coordinator.rounds.in_memory_devices import InMemoryDevices
from tests.coordinator.rounds.test_engine import TEXT, federation_of
from tests.failing_disk import FailingDisk, failing

STEPS = {"a": 1.0, "b": 2.0, "c": 4.0}


class FullLedger:
    """Fails at the ``at``-th write of a ledger as SQLite does when its disk is full, when all of it is done."""

    def __init__(self, at: int) -> None:
        self.at, self.done, self.failed = at, 0, 0

    @contextmanager
    def in_place(self) -> Iterator[FullLedger]:
        real = LedgerFile.transaction

        @contextmanager
        def transaction(file: LedgerFile, **options: Any) -> Iterator[Any]:
            with real(file, **options) as sql:
                yield sql
                self.done += 1
                if self.done == self.at:
                    self.failed += 1
                    raise OperationalError("COMMIT", {}, sqlite3.OperationalError("database or disk is full"))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LedgerFile, "transaction", transaction)
            yield self


class RestartedDevices(InMemoryDevices):
    """As its base, and an update of before this process is made of the model that its round began with.

    A device has the same number of examples in each process.
    """

    def wait(self, timeout_s: float) -> None:
        places = {device: place for place, device in enumerate(sorted(self._steps))}
        for entry in self._ordered:
            done = msgspec.structs.replace(report(entry), num_examples=places[entry.device] + 1)
            self._ledger.updates.record(entry.assignment_id, update_digest=entry.assignment_id, size=0, report=done)

    def update(self, federation: Federation, recorded: RecordedUpdate) -> Update:
        if not hasattr(self, "_state"):
            last = federation.ledger.rounds.last_committed()
            init = federation.method.init()
            self._state = init
            if last is not None:
                data = federation.blobs.read(last.model_digest)
                self._state = decode_state(data, round_index=last.round + 1)
            self._level = federation.method.levels()[0]
        return super().update(federation, recorded)


def begun(folder: Path) -> None:
    folder.mkdir()
    text = canonical_toml(load_config_text(TEXT))
    Ledger.create(folder / "ledger.sqlite", federation="in-memory", config=text, seed=1).close()


def finished(folder: Path, place: Path | str = "") -> bytes:
    """The final model of the run in ``folder``, with its ledger at ``place``, gone on with from what is there."""
    with Ledger.open(place or folder / "ledger.sqlite", federation="in-memory") as ledger:
        federation = federation_of(folder, ledger, STEPS)
        state = run_rounds(dataclasses.replace(federation, devices=RestartedDevices(ledger, STEPS)))
        assert ledger.audit.findings() == []
        committed = [(r.round, r.participants) for r in ledger.rounds.all() if r.state == "committed"]
        assert committed == [(0, ("a", "b", "c")), (1, ("a", "b", "c"))]
        return encode_state(state)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    begun(folder)
    return finished(folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_blob_that_cannot_be_written_stops_the_run_which_then_ends_with_the_same_bits(
    tmp_path: Path, undisturbed: bytes, number: int
) -> None:
    begun(tmp_path / "calm")
    with failing(FailingDisk(tmp_path / "calm" / "blobs", 0, times=0)) as calm:
        finished(tmp_path / "calm")
    assert len(calm.done) > 8, calm.done
    for at in range(1, len(calm.done) + 1):
        folder = tmp_path / str(at)
        begun(folder)
        with (
            failing(FailingDisk(folder / "blobs", at, number)) as disk,
            pytest.raises(
                StoreFull if number == errno.ENOSPC else StoreUnreachable,
                match=r"free some disk|see the state of that disk",
            ) as caught,
        ):
            finished(folder)
        assert len(disk.failed) == 1
        assert caught.value.exit_code in (1, 3)
        assert finished(folder) == undisturbed, (at, disk.failed)


@pytest.mark.slow
def test_row_that_cannot_be_written_stops_the_run_which_then_ends_with_the_same_bits(
    tmp_path: Path, undisturbed: bytes
) -> None:
    begun(tmp_path / "calm")
    with FullLedger(0).in_place() as calm:
        finished(tmp_path / "calm")
    assert calm.done > 12
    for at in range(1, calm.done + 1):
        folder = tmp_path / str(at)
        begun(folder)
        with (
            FullLedger(at).in_place() as full,
            pytest.raises(LedgerError, match="nothing changed; free disk space, then resume"),
        ):
            finished(folder)
        assert full.failed == 1
        assert finished(folder) == undisturbed, at

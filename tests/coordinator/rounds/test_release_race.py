"""A coordinator lets go of blobs while another one, which has taken over meanwhile, begins a round that needs them."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import pytest

from coordinator.blobs.blob_store import BlobStore
from coordinator.config.canonical import canonical_toml
from coordinator.ledger.ledger import Ledger
from coordinator.rounds.run import run_rounds
from coordinator.run_file.loading import load_config_text
from edge.contracts.plan import BlobRef
from tests.coordinator.rounds.test_engine import TEXT, federation_of
from tests.postgres_server import PostgresServer

STEPS = {"a": 1.0, "b": 2.0, "c": 4.0}


@pytest.mark.parametrize("has_row", [False, True])
def test_blob_that_the_next_leader_has_put_is_not_deleted_by_the_last(
    postgres_server: PostgresServer, tmp_path: Path, has_row: bool
) -> None:
    place = postgres_server.new_database()
    text = TEXT.replace("rounds = 2", "rounds = 4") + f'[store]\nledger = "{place}"\n'
    config = canonical_toml(load_config_text(text))
    with Ledger.create(place, federation="in-memory", config=config, seed=1) as ledger:
        federation = federation_of(tmp_path, ledger, STEPS, text)
        next_leader, next_ledger = BlobStore(tmp_path / "blobs"), Ledger.open(place, federation="in-memory")
        real, models, taken = ledger.blobs.release, dict[str, bytes](), list[str]()

        def release(before_round: int) -> tuple[str, ...]:
            models.update({entry.digest: next_leader.read(entry.digest) for entry in next_leader.entries()})
            time.sleep(0.02)  # files have the time of the kernel's last tick
            return taken_from(real(before_round))

        def taken_from(released: tuple[str, ...]) -> tuple[str, ...]:
            # The other coordinator goes on here, while this one stands still.
            for digest in set(released) & models.keys():
                assert next_leader.put(models[digest]) == digest
                taken.append(digest)
                if has_row:
                    next_ledger.blobs.add(digest, len(models[digest]))
            return released

        ledger.blobs.release = release  # type: ignore[method-assign]
        run_rounds(federation)
        assert taken
        for digest in taken:
            assert next_leader.read(digest) == models[digest]
        next_ledger.close()


def test_model_that_nobody_needs_any_more_is_deleted(tmp_path: Path) -> None:
    text = TEXT.replace("rounds = 2", "rounds = 4")
    config = canonical_toml(load_config_text(text))
    with Ledger.create(tmp_path / "ledger.sqlite", federation="in-memory", config=config, seed=1) as ledger:
        federation = federation_of(tmp_path, ledger, STEPS, text)
        run_rounds(federation)
        stored = set(federation.blobs.digests())
        assert stored <= ledger.blobs.sizes().keys()


def test_upload_of_a_round_that_the_next_leader_planned_is_left(tmp_path: Path) -> None:
    text = canonical_toml(load_config_text(TEXT))
    with Ledger.create(tmp_path / "ledger.sqlite", federation="in-memory", config=text, seed=1) as ledger:
        federation = federation_of(tmp_path, ledger, STEPS)
        unknown = "f" * 64  # planned after this coordinator last read the ledger

        def upload(point: str) -> None:
            if point == "releasing":
                federation.blobs.partial(unknown, BlobRef("e" * 64, 9, "raw", 9)).write(0, b"half")

        run_rounds(dataclasses.replace(federation, on_point=upload))
        assert set(federation.blobs.partials().values()) == {unknown}


def test_blob_out_of_sight_is_found_by_whoever_wants_it(tmp_path: Path) -> None:
    """The process that looked at its age was killed, or stands still."""
    collector, other = BlobStore(tmp_path), BlobStore(tmp_path)
    digest = collector.put(b"about to get its row")
    collector.path(digest).rename(tmp_path / "incoming" / f"old-{digest}")
    assert digest in other
    collector.path(digest).rename(tmp_path / "incoming" / f"old-{digest}")
    assert other.read(digest) == b"about to get its row"


def test_blob_put_between_the_look_at_its_age_and_its_end_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector, other = BlobStore(tmp_path), BlobStore(tmp_path)
    digest = collector.put(b"x")
    path = collector.path(digest)
    os.utime(path, (1.0, 1.0))
    real = Path.rename

    def renamed(self: Path, target: Path) -> Path:
        if self == path:
            other.put(b"x")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", renamed)
    assert not collector.delete_if_old(digest, time.time() - 100)
    assert other.read(digest) == b"x"

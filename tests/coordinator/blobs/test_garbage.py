"""Garbage: what no row names and is old enough; never a young blob, an open upload or another run's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.blobs.blob_store import BlobStore
from coordinator.blobs.cached import CachedBlobs
from coordinator.blobs.garbage import GRACE_S, collect_at_start, collect_garbage, find_garbage, is_collectable
from coordinator.blobs.opening import owner_of
from coordinator.blobs.remote import RemoteFolder
from edge.contracts.plan import BlobRef, assignment_id
from tests.coordinator.stored_run import StoredRun


@pytest.fixture
def run(tmp_path: Path, ledger_place: Path | str) -> Iterator[StoredRun]:
    stored = StoredRun(tmp_path / "run", ledger_place)
    yield stored
    stored.ledger.close()


def age(path: Path, seconds: float = GRACE_S + 60) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def upload(run: StoredRun, device: str, round_index: int) -> Path:
    ref = BlobRef("e" * 64, 100, "raw", 100)
    run.blobs.partial(assignment_id("small", round_index, device, 0), ref).write(0, b"x" * 40)
    return next(path for path in run.blobs.partials() if assignment_id("small", round_index, device, 0) in path.name)


def test_a_run_left_alone_has_none(run: StoredRun) -> None:
    for entry in list(run.blobs.entries()):
        age(run.blobs.path(entry.digest))
    assert find_garbage(run.ledger, run.blobs).count == 0
    assert collect_garbage(run.ledger, run.blobs, grace_s=0.0).count == 0
    assert {e.digest for e in run.blobs.entries()} == set(run.digests.values())


def test_old_blob_without_a_row_is_deleted_and_a_young_one_is_not(run: StoredRun) -> None:
    old, young = run.blobs.put(b"old"), run.blobs.put(b"young")
    age(run.blobs.path(old))
    found = find_garbage(run.ledger, run.blobs)
    assert ([e.digest for e in found.blobs], found.young, found.size) == ([old], 1, 3)
    used = run.blobs.used_bytes()
    assert collect_garbage(run.ledger, run.blobs) == found
    assert old not in run.blobs
    assert young in run.blobs
    assert run.blobs.used_bytes() == used - 3


def test_released_blob_whose_file_was_left_is_deleted(run: StoredRun) -> None:
    """Rows go first: a process killed between row and file leaves the file."""
    run.ledger.assignments.expire(assignment_id("small", 1, "pi-2", 0))  # a round lets go of those it does not wait for
    run.ledger.rounds.move(1, 0, "aggregating", participants=["pi-1"])
    run.put("model 1", b"model 1")
    run.ledger.rounds.move(1, 0, "committed", model_digest=run.digests["model 1"])
    released = run.ledger.blobs.release(1)
    assert run.digests["weights 0"] in released
    collect_garbage(run.ledger, run.blobs, grace_s=0.0)
    assert {e.digest for e in run.blobs.entries()} == set(run.digests.values()) - set(released)


def test_blob_put_again_counts_as_young(run: StoredRun) -> None:
    digest = run.blobs.put(b"about to get its row")
    age(run.blobs.path(digest))
    run.blobs.put(b"about to get its row")
    assert collect_garbage(run.ledger, run.blobs).count == 0
    age(run.blobs.path(digest))
    assert not run.blobs.delete_if_old(digest, time.time() - 2 * GRACE_S)
    assert digest in run.blobs


def test_blob_held_by_a_killed_collector_comes_back(run: StoredRun) -> None:
    held = run.blobs.root / "incoming" / f"old-{run.digests['weights 1']}"
    run.blobs.path(run.digests["weights 1"]).rename(held)
    assert run.digests["weights 1"] in BlobStore(run.blobs.root)
    assert not held.exists()


def test_uploads_go_when_their_assignment_is_not_open(run: StoredRun) -> None:
    over, unknown, open_ = upload(run, "pi-1", 0), upload(run, "nobody", 7), upload(run, "pi-2", 1)
    for path in (over, unknown, open_):
        age(path)
    found = collect_garbage(run.ledger, run.blobs)
    assert set(found.uploads) == {over, unknown}
    assert list(run.blobs.partials()) == [open_]


def test_half_written_file_of_a_living_process_stays(run: StoredRun, tmp_path: Path) -> None:
    folder = run.blobs.root / "incoming"
    writer = (
        "import sys, time; from pathlib import Path; from coordinator.blobs.files import incoming_file\n"
        f"with incoming_file(Path({str(folder)!r})) as (path, file):\n"
        "    file.write(b'half'); file.flush(); print(path, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", writer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        age(path)
        assert find_garbage(run.ledger, run.blobs).half_written == ()
        BlobStore(run.blobs.root)
        assert path.is_file()
        process.kill()
        process.wait()
        assert path.is_file()
        assert collect_garbage(run.ledger, run.blobs).half_written == (path,)
    assert not path.exists()


def test_folder_of_several_runs_is_nobodys_to_collect(run: StoredRun) -> None:
    own = owner_of(run.ledger.federation())
    run.blobs.claim(own, is_own=False)
    assert run.blobs.owners() == ["a run of an earlier release", own]
    lost = run.blobs.put(b"another run's")
    assert not is_collectable(run.ledger, run.blobs)
    assert collect_at_start(run.ledger, run.blobs, is_alone=True) == ""
    assert lost in run.blobs


def test_start_collects_whatever_its_age_when_nobody_else_can_write(run: StoredRun) -> None:
    run.blobs.claim(owner_of(run.ledger.federation()), is_own=True)
    lost = run.blobs.put(b"lost")
    assert collect_at_start(run.ledger, run.blobs, is_alone=False) == ""
    assert collect_at_start(run.ledger, run.blobs, is_alone=True) == (
        "garbage of an earlier start collected: 1 files, 4 bytes"
    )
    assert lost not in run.blobs


def test_blobs_elsewhere_and_copies_of_what_is_no_longer_there(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/there"
    run = StoredRun(tmp_path / "run", blobs=CachedBlobs(tmp_path / "copies", RemoteFolder(url)))
    blobs = run.blobs
    assert isinstance(blobs, CachedBlobs)
    lost, gone = blobs.put(b"lost"), blobs.put(b"gone")
    blobs.remote.delete(gone)
    age(Path(f"{tmp_path}/there/{lost[:2]}/{lost}"))
    age(tmp_path / "copies" / gone[:2] / gone)
    found = collect_garbage(run.ledger, blobs)
    assert ([e.digest for e in found.blobs], [e.digest for e in found.copies]) == ([lost], [gone])
    assert {e.digest for e in blobs.entries()} == set(run.digests.values()) == {e.digest for e in blobs.copies()}
    run.ledger.close()

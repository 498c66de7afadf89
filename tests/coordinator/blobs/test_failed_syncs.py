"""A sync that failed is never repeated: what it was for counts as not written, and is written anew from memory."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.blobs.blob_store import BlobStore
from coordinator.rounds.global_model import write_atomically
from edge.contracts.errors import StoreUnreachable
from edge.contracts.plan import BlobRef
from edge.system.atomic_files import write_whole
from tests.failing_disk import FailingDisk, failing

DATA = bytes(range(256)) * 40
DIGEST = hashlib.sha256(DATA).hexdigest()
SYNCS_OF_A_PUT = 3
"""The file, its folder, and the store's own folder for a first digit pair that is new."""


def syncs(disk: FailingDisk) -> list[str]:
    return [what for what in disk.done if what.startswith("sync")]


@pytest.mark.parametrize("number", range(1, SYNCS_OF_A_PUT + 1))
def test_blob_is_not_there_after_a_sync_that_failed_and_put_writes_it_anew(tmp_path: Path, number: int) -> None:
    blobs = BlobStore(tmp_path)
    with failing(FailingDisk(tmp_path, number, errno.EIO, only="sync")) as disk:
        with pytest.raises(StoreUnreachable, match="not written"):
            blobs.put(DATA)
        assert DIGEST not in blobs
        assert list(tmp_path.glob("incoming/*")) == []
        before = len(disk.done)
        assert blobs.put(DATA) == DIGEST
        anew = disk.done[before:]
        # A file of another name, its folder (which may be known by now), nothing of the first try.
        assert len(anew) >= 2
        assert anew[0] not in disk.done[:before]
    assert blobs.read(DIGEST) == DATA
    assert blobs.used_bytes() == len(DATA)


def test_put_needs_as_many_syncs_as_the_test_above_fails(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    with failing(FailingDisk(tmp_path, 0, only="sync", times=0)) as disk:
        blobs.put(DATA)
    assert len(disk.done) == SYNCS_OF_A_PUT


@pytest.mark.parametrize("number", [1, 2, 3])
def test_upload_whose_sync_failed_is_sent_again_from_its_first_byte(tmp_path: Path, number: int) -> None:
    blobs, ref = BlobStore(tmp_path), BlobRef(DIGEST, len(DATA), "raw", len(DATA))
    upload = blobs.partial("a" * 64, ref)
    upload.write(0, DATA)
    with failing(FailingDisk(tmp_path, number, errno.EIO, only="sync")), pytest.raises(StoreUnreachable):
        upload.finish()
    again = blobs.partial("a" * 64, ref)
    assert again.received == 0
    assert DIGEST not in blobs
    again.write(0, DATA)
    with failing(FailingDisk(tmp_path, 0, only="sync", times=0)) as disk:
        assert again.finish() == DIGEST
    assert len(syncs(disk)) >= 2
    assert blobs.read(DIGEST) == DATA
    assert blobs.used_bytes() == len(DATA)


@pytest.mark.parametrize("write", [write_whole, write_atomically])
@pytest.mark.parametrize("number", [1, 2])
def test_file_whose_sync_failed_is_written_anew(
    tmp_path: Path, number: int, write: Callable[[Path, bytes], None]
) -> None:
    with failing(FailingDisk(tmp_path, number, errno.EIO, only="sync")) as disk:
        with pytest.raises(OSError, match="Input/output error"):
            write(tmp_path / "file", DATA)
        assert not (tmp_path / "file.tmp").exists()
        before = len(disk.done)
        write(tmp_path / "file", DATA)
    assert len(disk.done) - before == 2
    assert (tmp_path / "file").read_bytes() == DATA

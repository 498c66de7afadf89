"""A store on a real disk of one megabyte that fills up: nothing half-written, nothing lost, the account right."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from coordinator.blobs.blob_store import BlobStore
from coordinator.blobs.files import disk_error, free_bytes
from edge.contracts.errors import StoreFull, StoreUnreachable
from edge.contracts.plan import BlobRef

ASSIGNMENT = "a" * 64


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here (needs root): {mounted.stderr.strip()[:100]}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def ref_of(data: bytes) -> BlobRef:
    return BlobRef(hashlib.sha256(data).hexdigest(), len(data), "raw", len(data))


def files(store: BlobStore) -> int:
    return sum(path.stat().st_size for path in store.root.rglob("*") if path.is_file())


def test_blob_that_does_not_fit_leaves_nothing(disk: Path) -> None:
    store = BlobStore(disk / "blobs")
    kept = store.put(b"k" * 600_000)
    free = free_bytes(disk)
    with pytest.raises(StoreFull, match=rf"{disk}/blobs: 600001 bytes do not fit, \d+ are free; free some disk space"):
        store.put(b"x" * 600_001)
    (disk.parent / "file").write_bytes(b"x" * 600_001)
    with pytest.raises(StoreFull, match="600001 bytes do not fit"):
        store.put_file(disk.parent / "file")
    assert list((store.root / "incoming").iterdir()) == []
    assert (store.used_bytes(), files(store), free_bytes(disk)) == (600_000, 600_000, free)
    store.delete(kept)
    assert store.put(b"x" * 600_001) in store


def test_upload_goes_on_from_its_last_whole_block_once_there_is_room(disk: Path) -> None:
    store = BlobStore(disk / "blobs")
    other = disk / "something else"
    data = os.urandom(700_000)
    partial = store.partial(ASSIGNMENT, ref_of(data))
    partial.write(0, data[:100_000])
    other.write_bytes(b"o" * 500_000)
    while free_bytes(disk) >= 100_000:
        partial.write(partial.received, data[partial.received :][:100_000])
    stopped = partial.received
    with pytest.raises(StoreFull, match=rf"{700_000 - stopped} bytes do not fit, \d+ are free"):
        partial.write(stopped, data[stopped:][:100_000])
    assert partial.received == stopped < 700_000
    assert store.used_bytes() == files(store) == stopped
    other.unlink()
    again = BlobStore(disk / "blobs").partial(ASSIGNMENT, ref_of(data))
    assert again.received == stopped
    for offset in range(stopped, 700_000, 100_000):
        again.write(offset, data[offset : offset + 100_000])
    assert again.finish() == ref_of(data).digest


def test_decoded_upload_that_does_not_fit_keeps_what_arrived(disk: Path) -> None:
    store, data = BlobStore(disk / "blobs"), b"weights " * 100_000
    packed = zstandard.compress(data)
    other = disk / "something else"
    other.write_bytes(b"o" * 400_000)
    ref = BlobRef(hashlib.sha256(data).hexdigest(), len(data), "zstd", len(packed))
    partial = store.partial(ASSIGNMENT, ref)
    partial.write(0, packed)
    with pytest.raises(StoreFull, match="800000 bytes do not fit"):
        partial.finish()
    assert store.used_bytes() == files(store) == len(packed)
    other.unlink()
    assert store.partial(ASSIGNMENT, ref).finish() in store
    assert store.used_bytes() == files(store) == len(data)


def test_room_is_what_the_disk_or_the_quota_leaves(disk: Path) -> None:
    assert BlobStore(disk / "blobs").room_bytes() == free_bytes(disk)
    store = BlobStore(disk / "other", quota_bytes=1000)
    store.put(b"x" * 400)
    assert store.room_bytes() == 600


def test_other_failures_of_a_disk_are_not_told_as_a_full_one(tmp_path: Path) -> None:
    failed = disk_error(OSError(errno.EIO, "Input/output error"), tmp_path, 10)
    assert isinstance(failed, StoreUnreachable)
    assert f"{tmp_path}: 10 bytes not written (Input/output error)" in str(failed)
    assert isinstance(disk_error(OSError(errno.EDQUOT, "Disk quota exceeded"), tmp_path, 10), StoreFull)

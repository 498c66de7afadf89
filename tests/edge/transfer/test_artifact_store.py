"""The store: verified, atomic, within its quota, never evicting what is pinned."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from edge.contracts.errors import ArtifactCorrupt, ConfigError, MessageRejected, StoreFull
from edge.contracts.plan import BlobRef
from edge.transfer.artifact_store import ArtifactStore

Open = Callable[..., ArtifactStore]


@pytest.fixture
def open_store() -> Iterator[Open]:
    """Opens stores that are closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda *a, **k: stack.enter_context(contextlib.closing(ArtifactStore(*a, **k)))


def ref(data: bytes, encoded: bytes | None = None) -> BlobRef:
    digest = hashlib.sha256(data).hexdigest()
    return BlobRef(digest, len(data), "raw" if encoded is None else "zstd", len(data if encoded is None else encoded))


def age(store: ArtifactStore, digest: str, seconds: int) -> None:
    os.utime(store.path(digest), (seconds, seconds))


def test_store_put_is_found_by_its_digest(open_store: Open, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    digest = store.put(b"weights")
    assert digest == hashlib.sha256(b"weights").hexdigest()
    assert store.verify(digest).read_bytes() == b"weights"
    assert not store.has("0" * 64)


@pytest.mark.parametrize("digest", ["../../etc/passwd", "a" * 63, "A" * 64, ""])
def test_store_path_refuses_what_is_no_digest(open_store: Open, tmp_path: Path, digest: str) -> None:
    with pytest.raises(MessageRejected, match="64 lower-case hex"):
        open_store(tmp_path).path(digest)


def test_store_flipped_byte_on_disk_is_found_and_dropped(open_store: Open, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    digest = store.put(b"weights")
    store.path(digest).write_bytes(b"weighty")
    with pytest.raises(ArtifactCorrupt, match=digest[:12]):
        store.verify(digest)
    assert not store.has(digest)


def test_store_completes_a_partial_blob_over_a_restart(open_store: Open, tmp_path: Path) -> None:
    data = b"0123456789" * 100
    first = open_store(tmp_path)
    first.partial(ref(data)).write_bytes(data[:400])
    first.close()
    store = open_store(tmp_path)
    partial = store.partial(ref(data))
    assert partial.stat().st_size == 400
    with partial.open("ab") as file:
        file.write(data[400:])
    assert store.complete(ref(data)).read_bytes() == data
    assert not partial.exists()


def test_store_decodes_zstd(open_store: Open, tmp_path: Path) -> None:
    data = b"abc" * 50_000
    packed = zstandard.compress(data)
    store = open_store(tmp_path)
    store.partial(ref(data, packed)).write_bytes(packed)
    assert store.complete(ref(data, packed)).read_bytes() == data


@pytest.mark.parametrize("packed", [b"not zstd at all", zstandard.compress(b"abc" * 90_000)], ids=["garbage", "bomb"])
def test_store_bad_zstd_is_corrupt_and_gone(open_store: Open, tmp_path: Path, packed: bytes) -> None:
    wanted = ref(b"abc" * 50_000, packed)
    store = open_store(tmp_path)
    store.partial(wanted).write_bytes(packed)
    with pytest.raises(ArtifactCorrupt, match=wanted.digest[:12]):
        store.complete(wanted)
    assert store.used_bytes() == 0


def test_store_wrong_digest_is_corrupt_and_gone(open_store: Open, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.partial(ref(b"right")).write_bytes(b"wrong")
    with pytest.raises(ArtifactCorrupt, match="fetch it again"):
        store.complete(ref(b"right"))
    assert store.used_bytes() == 0


def test_store_evicts_the_least_recently_used_first(open_store: Open, tmp_path: Path) -> None:
    store = open_store(tmp_path, quota_bytes=300)
    old, middle, recent = (store.put(bytes([i]) * 100) for i in range(3))
    for digest, when in ((old, 1000), (middle, 2000), (recent, 3000)):
        age(store, digest, when)
    assert store.has(old)  # being asked for is use: now the newest
    store.put(b"x" * 100)
    assert [store.has(d) for d in (old, middle, recent)] == [True, False, True]


def test_store_never_evicts_what_is_pinned_and_evicts_nothing_in_vain(open_store: Open, tmp_path: Path) -> None:
    store = open_store(tmp_path, quota_bytes=300)
    pinned, other = store.put(b"a" * 200), store.put(b"b" * 100)
    store.pin(pinned)
    with pytest.raises(StoreFull, match="quota of 300 bytes"):
        store.put(b"c" * 150)
    assert store.has(pinned)
    assert store.has(other)
    store.unpin_all()
    age(store, pinned, 1000)
    store.put(b"c" * 150)
    assert not store.has(pinned)


def test_store_counts_finished_work_but_keeps_it(open_store: Open, tmp_path: Path) -> None:
    store = open_store(tmp_path, quota_bytes=100)
    (tmp_path / "work" / "update").write_bytes(b"u" * 90)
    with pytest.raises(StoreFull, match="90 in use"):
        store.put(b"b" * 20)
    assert (tmp_path / "work" / "update").exists()


def test_store_evicts_kept_features_for_a_blob(open_store: Open, tmp_path: Path) -> None:
    store = open_store(tmp_path, quota_bytes=300)
    store.features.mkdir()
    (store.features / "f").write_bytes(bytes(250))
    store.put(b"b" * 100)
    assert not (store.features / "f").exists()


def test_features_may_take_half_of_what_nothing_else_uses(open_store: Open, tmp_path: Path) -> None:
    store = open_store(tmp_path, quota_bytes=1000)
    store.put(b"b" * 100)
    assert store.features_room() == 450
    store.features.mkdir()
    (store.features / "f").write_bytes(bytes(400))
    assert store.features_room() == 450
    (tmp_path / "work" / "update").write_bytes(bytes(700))
    assert store.features_room() == 100


def test_store_removes_what_a_crash_left(open_store: Open, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / ("a" * 64 + ".tmp")).write_bytes(b"half")
    assert open_store(tmp_path).used_bytes() == 0


def test_store_is_held_by_one_agent_until_it_is_closed(open_store: Open, tmp_path: Path) -> None:
    holder = open_store(tmp_path)
    with pytest.raises(ConfigError, match=f"--store: {tmp_path} is used by another agent"):
        open_store(tmp_path, wait_s=0.0)
    holder.close()
    open_store(tmp_path, wait_s=0.0).close()

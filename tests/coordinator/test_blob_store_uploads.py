"""The blob store: names stand for whole bytes, uploads resume, nothing escapes the folder or the quota."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import zstandard

from coordinator.blob_store import BlobStore
from edge.contracts.errors import ArtifactCorrupt, MessageRejected, StoreFull
from edge.contracts.plan import Encoding

ASSIGNMENT = "a" * 64


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_put_and_read_by_digest(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    digest = store.put_bytes(b"weights")
    assert digest == digest_of(b"weights")
    assert store.has(digest)
    assert store.read(digest) == b"weights"
    assert store.read(digest, 2, 3) == b"igh"
    assert store.read(digest, 5, 100) == b"ts"
    assert store.size(digest) == 7


def test_put_file_and_put_again_keep_one_copy(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    (tmp_path / "graph.onnx").write_bytes(b"graph")
    assert store.put_file(tmp_path / "graph.onnx") == store.put_bytes(b"graph")
    assert list(store.digests()) == [digest_of(b"graph")]
    assert list((tmp_path / "blobs" / "incoming").iterdir()) == []


@pytest.mark.parametrize("digest", ["../../etc/passwd", "", "A" * 64, "a" * 63, "a" * 63 + "/", "a" * 65])
def test_path_that_is_no_digest_is_refused(tmp_path: Path, digest: str) -> None:
    with pytest.raises(MessageRejected, match="64 lower-case hex digits"):
        BlobStore(tmp_path).path(digest)


def test_missing_blob_says_so(tmp_path: Path) -> None:
    with pytest.raises(ArtifactCorrupt, match=r"blob bbbbbbbbbbbb is not in the store"):
        BlobStore(tmp_path).read("b" * 64)


def test_verify_finds_one_flipped_byte(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    digest = store.put_bytes(b"weights")
    store.verify(digest)
    store.path(digest).write_bytes(b"weightz")
    with pytest.raises(ArtifactCorrupt, match=f"blob {digest[:12]} holds bytes of digest {digest_of(b'weightz')[:12]}"):
        store.verify(digest)


def test_garbage_is_what_no_row_names(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    kept, lost = store.put_bytes(b"kept"), store.put_bytes(b"lost")
    assert store.garbage({kept}) == (lost,)
    store.delete(lost)
    store.delete(lost)
    assert store.garbage({kept}) == ()
    assert store.read(kept) == b"kept"


def test_half_written_blob_of_a_killed_process_is_cleared(tmp_path: Path) -> None:
    BlobStore(tmp_path)
    (tmp_path / "incoming" / "left").write_bytes(b"half")
    store = BlobStore(tmp_path)
    assert list(store.digests()) == []
    assert not (tmp_path / "incoming" / "left").exists()


def test_upload_resumes_after_a_restart(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4
    digest = digest_of(data)
    first = BlobStore(tmp_path).partial(ASSIGNMENT, digest)
    assert first.append(0, data[:300]) == 300
    second = BlobStore(tmp_path).partial(ASSIGNMENT, digest)
    assert second.received == 300
    assert second.append(300, data[300:]) == 1024
    assert second.finish(1024) == digest
    assert BlobStore(tmp_path).read(digest) == data
    assert list((tmp_path / "partial").iterdir()) == []


@pytest.mark.parametrize("offset", [0, 200, 5000])
def test_block_that_is_not_next_is_ignored(tmp_path: Path, offset: int) -> None:
    partial = BlobStore(tmp_path).partial(ASSIGNMENT, digest_of(b"x" * 1000))
    partial.append(0, b"x" * 100)
    assert partial.append(offset, b"y" * 100) == 100
    assert partial.received == 100


def test_upload_of_other_bytes_is_refused_and_starts_again(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    partial = store.partial(ASSIGNMENT, digest_of(b"good"))
    partial.append(0, b"evil")
    with pytest.raises(ArtifactCorrupt, match="other bytes arrived; send it again"):
        partial.finish(4)
    assert partial.received == 0
    assert list(store.digests()) == []


def test_incomplete_upload_is_refused(tmp_path: Path) -> None:
    partial = BlobStore(tmp_path).partial(ASSIGNMENT, digest_of(b"0123456789"))
    partial.append(0, b"0123")
    with pytest.raises(ArtifactCorrupt, match="4 bytes here, 10 announced"):
        partial.finish(10)


@pytest.mark.parametrize("encoding", ["raw", "zstd"])
def test_upload_that_never_began_is_refused(tmp_path: Path, encoding: Encoding) -> None:
    partial = BlobStore(tmp_path).partial(ASSIGNMENT, digest_of(b"0123456789"))
    with pytest.raises(ArtifactCorrupt, match="0 bytes here, 10 announced"):
        partial.finish(10, encoding)


def test_zstd_upload_is_stored_decoded(tmp_path: Path) -> None:
    data = b"weights " * 1000
    store = BlobStore(tmp_path)
    partial = store.partial(ASSIGNMENT, digest_of(data))
    partial.append(0, zstandard.compress(data))
    assert partial.finish(len(data), "zstd") == digest_of(data)
    assert store.read(digest_of(data)) == data
    assert list((tmp_path / "partial").iterdir()) == []


def test_zstd_bomb_stops_at_the_announced_size(tmp_path: Path) -> None:
    partial = BlobStore(tmp_path).partial(ASSIGNMENT, "b" * 64)
    partial.append(0, zstandard.compress(b"\0" * 50_000_000))
    with pytest.raises(ArtifactCorrupt, match="1001 bytes here, 1000 announced"):
        partial.finish(1000, "zstd")


def test_zstd_that_is_none_is_refused(tmp_path: Path) -> None:
    partial = BlobStore(tmp_path).partial(ASSIGNMENT, "b" * 64)
    partial.append(0, b"none")
    with pytest.raises(ArtifactCorrupt, match="not zstd"):
        partial.finish(4, "zstd")


def test_quota_counts_blobs_and_partial_uploads(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, quota_bytes=100)
    kept = store.put_bytes(b"x" * 60)
    with pytest.raises(StoreFull, match="60 of 100 bytes are used and 50 more are needed"):
        store.put_bytes(b"y" * 50)
    with pytest.raises(StoreFull, match="50 more are needed"):
        store.partial(ASSIGNMENT, digest_of(b"y" * 50)).append(0, b"y" * 50)
    partial = store.partial(ASSIGNMENT, digest_of(b"z" * 30))
    partial.append(0, b"z" * 30)
    with pytest.raises(StoreFull, match="90 of 100 bytes are used"):
        BlobStore(tmp_path, quota_bytes=100).put_bytes(b"v" * 20)
    store.discard(ASSIGNMENT, digest_of(b"z" * 30))
    store.delete(kept)
    assert store.has(store.put_bytes(b"y" * 50))


@pytest.mark.parametrize("assignment", ["../evil", "a" * 63, "a/" * 32])
def test_partial_of_an_id_that_is_none_is_refused(tmp_path: Path, assignment: str) -> None:
    with pytest.raises(MessageRejected, match="assignment id"):
        BlobStore(tmp_path).partial(assignment, digest_of(b"x"))
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["incoming", "partial"]


def test_finished_upload_still_counts_against_the_quota(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, quota_bytes=100)
    partial = store.partial(ASSIGNMENT, digest_of(b"z" * 60))
    partial.append(0, b"z" * 60)
    partial.finish(60)
    with pytest.raises(StoreFull, match="60 of 100 bytes are used and 50 more"):
        store.put_bytes(b"y" * 50)


def test_drop_partials_gives_the_room_back(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, quota_bytes=50)
    store.partial(ASSIGNMENT, digest_of(b"z" * 40)).append(0, b"z" * 40)
    assert store.drop_partials() == 1
    assert store.has(store.put_bytes(b"y" * 50))

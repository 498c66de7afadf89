"""The blob store: names stand for whole bytes, uploads resume, nothing escapes the folder or the quota."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import zstandard

from coordinator.blobs.blob_store import BlobStore
from edge.contracts.errors import ArtifactCorrupt, MessageRejected, StoreFull
from edge.contracts.plan import BlobRef

ASSIGNMENT = "a" * 64


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def raw_ref(data: bytes) -> BlobRef:
    return BlobRef(digest=digest_of(data), size=len(data), encoding="raw", encoded_size=len(data))


def test_put_and_read_by_digest(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    digest = store.put(b"weights")
    assert digest == digest_of(b"weights")
    assert digest in store
    assert store.read(digest) == b"weights"
    assert store.read(digest, 2, 3) == b"igh"
    assert store.read(digest, 5, 100) == b"ts"
    assert store.size(digest) == 7


def test_put_file_and_put_again_keep_one_copy(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    (tmp_path / "graph.onnx").write_bytes(b"graph")
    assert store.put_file(tmp_path / "graph.onnx") == store.put(b"graph")
    assert list(store.digests()) == [digest_of(b"graph")]
    assert list((tmp_path / "blobs" / "incoming").iterdir()) == []


def test_assignment_has_one_partial_upload_whatever_is_offered_for_it(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    for number in range(20):
        store.partial(ASSIGNMENT, raw_ref(bytes([number]) * 1000)).write(0, bytes([number]) * 900)
    other = store.partial("b" * 64, raw_ref(b"x" * 1000))
    other.write(0, b"x" * 300)
    assert sorted(path.stat().st_size for path in (tmp_path / "partial").iterdir()) == [300, 900]
    assert store.used_bytes() == 1200


@pytest.mark.parametrize("digest", ["../../etc/passwd", "", "A" * 64, "a" * 63, "a" * 63 + "/", "a" * 65])
def test_path_that_is_no_digest_is_refused(tmp_path: Path, digest: str) -> None:
    with pytest.raises(MessageRejected, match="64 lower-case hex digits"):
        BlobStore(tmp_path).path(digest)


def test_missing_blob_says_so(tmp_path: Path) -> None:
    with pytest.raises(ArtifactCorrupt, match=r"blob bbbbbbbbbbbb is not in the store"):
        BlobStore(tmp_path).read("b" * 64)


def test_verify_finds_one_flipped_byte(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    digest = store.put(b"weights")
    store.verify(digest)
    store.path(digest).write_bytes(b"weightz")
    with pytest.raises(ArtifactCorrupt, match=f"blob {digest[:12]} holds bytes of digest {digest_of(b'weightz')[:12]}"):
        store.verify(digest)


def test_deleted_blob_is_gone_and_others_stay(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    kept, lost = store.put(b"kept"), store.put(b"lost")
    store.delete(lost)
    store.delete(lost)
    assert list(store.digests()) == [kept]
    assert store.read(kept) == b"kept"
    assert store.used_bytes() == 4


def test_half_written_blob_of_a_killed_process_is_cleared(tmp_path: Path) -> None:
    BlobStore(tmp_path)
    (tmp_path / "incoming" / "left").write_bytes(b"half")
    store = BlobStore(tmp_path)
    assert list(store.digests()) == []
    assert not (tmp_path / "incoming" / "left").exists()


def test_upload_resumes_after_a_restart(tmp_path: Path) -> None:
    data = bytes(range(256)) * 4
    ref = raw_ref(data)
    first = BlobStore(tmp_path).partial(ASSIGNMENT, ref)
    assert first.write(0, data[:300]) == 300
    second = BlobStore(tmp_path).partial(ASSIGNMENT, ref)
    assert second.received == 300
    assert second.write(300, data[300:]) == 1024
    assert second.is_complete
    assert second.finish() == ref.digest
    assert BlobStore(tmp_path).read(ref.digest) == data
    assert list((tmp_path / "partial").iterdir()) == []


@pytest.mark.parametrize("offset", [0, 200, 5000])
def test_block_that_is_not_next_is_ignored(tmp_path: Path, offset: int) -> None:
    partial = BlobStore(tmp_path).partial(ASSIGNMENT, raw_ref(b"x" * 1000))
    partial.write(0, b"x" * 100)
    assert partial.write(offset, b"y" * 100) == 100
    assert partial.received == 100


def test_upload_past_its_announced_size_is_refused(tmp_path: Path) -> None:
    partial = BlobStore(tmp_path).partial(ASSIGNMENT, raw_ref(b"x" * 10))
    with pytest.raises(MessageRejected, match="bytes up to 11, 10 were announced"):
        partial.write(0, b"x" * 11)
    assert partial.received == 0


def test_upload_of_other_bytes_is_refused_and_starts_again(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    partial = store.partial(ASSIGNMENT, raw_ref(b"good"))
    partial.write(0, b"evil")
    with pytest.raises(ArtifactCorrupt, match="other bytes arrived; send it again"):
        partial.finish()
    assert partial.received == 0
    assert list(store.digests()) == []


def test_incomplete_upload_is_refused(tmp_path: Path) -> None:
    partial = BlobStore(tmp_path).partial(ASSIGNMENT, raw_ref(b"0123456789"))
    partial.write(0, b"0123")
    with pytest.raises(ArtifactCorrupt, match="4 of 10 bytes"):
        partial.finish()


def test_zstd_upload_is_stored_decoded(tmp_path: Path) -> None:
    data = b"weights " * 1000
    packed = zstandard.compress(data)
    ref = BlobRef(digest=digest_of(data), size=len(data), encoding="zstd", encoded_size=len(packed))
    store = BlobStore(tmp_path)
    partial = store.partial(ASSIGNMENT, ref)
    partial.write(0, packed)
    assert partial.finish() == ref.digest
    assert store.read(ref.digest) == data


def test_zstd_bomb_stops_at_the_announced_size(tmp_path: Path) -> None:
    packed = zstandard.compress(b"\0" * 50_000_000)
    ref = BlobRef(digest="b" * 64, size=1000, encoding="zstd", encoded_size=len(packed))
    partial = BlobStore(tmp_path).partial(ASSIGNMENT, ref)
    partial.write(0, packed)
    with pytest.raises(ArtifactCorrupt, match="1001 bytes decoded so far, 1000 announced"):
        partial.finish()


def test_zstd_that_is_none_is_refused(tmp_path: Path) -> None:
    ref = BlobRef(digest="b" * 64, size=4, encoding="zstd", encoded_size=4)
    partial = BlobStore(tmp_path).partial(ASSIGNMENT, ref)
    partial.write(0, b"none")
    with pytest.raises(ArtifactCorrupt, match="not zstd"):
        partial.finish()


def test_quota_counts_blobs_and_partial_uploads(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, quota_bytes=100)
    kept = store.put(b"x" * 60)
    with pytest.raises(StoreFull, match="60 of 100 bytes are used and 50 more are needed"):
        store.put(b"y" * 50)
    with pytest.raises(StoreFull, match="50 more are needed"):
        store.partial(ASSIGNMENT, raw_ref(b"y" * 50))
    partial = store.partial(ASSIGNMENT, raw_ref(b"z" * 30))
    partial.write(0, b"z" * 30)
    with pytest.raises(StoreFull, match="90 of 100 bytes are used"):
        BlobStore(tmp_path, quota_bytes=100).put(b"v" * 20)
    partial.discard()
    store.delete(kept)
    assert store.put(b"y" * 50) in store


@pytest.mark.parametrize("assignment", ["../evil", "a" * 63, "a/" * 32])
def test_partial_of_an_id_that_is_none_is_refused(tmp_path: Path, assignment: str) -> None:
    with pytest.raises(MessageRejected, match="assignment id"):
        BlobStore(tmp_path).partial(assignment, raw_ref(b"x"))
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["incoming", "partial"]


def test_partial_of_no_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MessageRejected, match="update of 0 bytes"):
        BlobStore(tmp_path).partial(ASSIGNMENT, BlobRef(digest="b" * 64, size=0))


def test_drop_partials_gives_the_room_back(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, quota_bytes=50)
    store.partial(ASSIGNMENT, raw_ref(b"z" * 40)).write(0, b"z" * 40)
    assert store.drop_partials({ASSIGNMENT}) == 1
    assert store.put(b"y" * 50) in store


def test_drop_partials_keeps_those_of_other_assignments(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    for assignment in ("a" * 64, "b" * 64):
        store.partial(assignment, raw_ref(b"z" * 40)).write(0, b"z" * 10)
    assert store.drop_partials({"a" * 64, "c" * 64}) == 1
    assert list(store.partials().values()) == ["b" * 64]
    assert store.used_bytes() == 10


@pytest.mark.parametrize("data", [b"update", b"u" * 300_000])
def test_changed_blob_is_found_before_every_sum_by_whoever_looks(tmp_path: Path, data: bytes) -> None:
    own = BlobStore(tmp_path)
    digest = own.put(data)
    other = BlobStore(tmp_path)
    for store in (own, other, own, other):
        store.check(digest, where="device pi-1, round 0")
    own.path(digest).write_bytes(data[:-1] + b"x")
    for store in (own, other, BlobStore(tmp_path)):
        with pytest.raises(
            ArtifactCorrupt, match=f"device pi-1, round 0: blob {digest[:12]} holds bytes of digest"
        ) as caught:
            store.check(digest, where="device pi-1, round 0")
        assert "fsck RUN_DIR --deep --repair" in caught.value.hint
    own.path(digest).write_bytes(data)
    own.check(digest, where="device pi-1, round 0")
    own.path(digest).unlink()
    with pytest.raises(ArtifactCorrupt, match="is not in the store"):
        own.check(digest, where="device pi-1, round 0")


def test_sound_blob_is_told_by_its_mark_and_not_hashed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlobStore(tmp_path)
    digests = [store.put(b"update"), store.put(b"")]
    monkeypatch.setattr(store, "verify", lambda digest: pytest.fail("hashed again"))
    for digest in digests:
        store.check(digest, where="device pi-1, round 0")


def test_damaged_blob_is_set_aside_and_can_be_put_again(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    digest = store.put(b"weights")
    store.path(digest).write_bytes(b"weightz")
    assert store.set_aside(digest).read_bytes() == b"weightz"
    assert digest not in store
    assert store.put(b"weights") == digest
    assert store.read(digest) == b"weights"


def test_blob_of_another_size_is_replaced(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    digest = store.put(b"weights")
    store.path(digest).write_bytes(b"wei")
    assert store.put(b"weights") == digest
    assert store.read(digest) == b"weights"


def test_write_after_the_file_was_dropped_tells_the_sender_to_begin_anew(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    partial = store.partial(ASSIGNMENT, raw_ref(b"z" * 40))
    assert partial.write(0, b"z" * 30) == 30
    store.drop_partials({ASSIGNMENT})
    assert partial.write(30, b"z" * 10) == 0
    assert partial.received == 0
    assert partial.write(0, b"z" * 40) == 40
    assert partial.finish() == digest_of(b"z" * 40)

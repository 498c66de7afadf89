"""Blobs elsewhere, over fsspec's own folders: durable there first, copies here, and nothing trusted on the way."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.blobs import cached as blob_cache
from coordinator.blobs import remote as blob_remote
from coordinator.blobs.cached import CachedBlobs
from coordinator.blobs.opening import open_blobs
from coordinator.blobs.remote import RemoteFolder
from coordinator.config.store import url_problem
from coordinator.ledger.records import Federation
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ArtifactCorrupt, ConfigError, StoreFull, StoreUnreachable
from edge.contracts.plan import BlobRef
from tests.federation.small_run import config_text

ASSIGNMENT = "a" * 64


def ref_of(data: bytes) -> BlobRef:
    return BlobRef(hashlib.sha256(data).hexdigest(), len(data), "raw", len(data))


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path}/there"
        return
    import fsspec

    yield f"memory://{tmp_path.name}/there"
    fsspec.filesystem("memory").rm("/", recursive=True)


def opened(url: str, folder: Path, **settings: int) -> CachedBlobs:
    return CachedBlobs(folder, RemoteFolder(url), **settings)


def there(url: str) -> list[str]:
    return sorted(entry.digest for entry in RemoteFolder(url).entries())


def test_blob_is_there_when_put_returns_and_found_by_another_machine(url: str, tmp_path: Path) -> None:
    first = opened(url, tmp_path / "one")
    digest = first.put(b"weights")
    assert there(url) == [digest] == list(first.digests())
    second = opened(url, tmp_path / "two")
    assert digest in second
    assert second.size(digest) == 7
    assert list(second.copies()) == []
    assert second.path(digest).read_bytes() == b"weights"
    with second.open(digest) as file:
        assert (second.read(digest, 2, 3), file.read()) == (b"igh", b"weights")
    assert [entry.digest for entry in second.copies()] == [digest]
    assert second.used_bytes() == 7


def test_blob_that_another_added_later_is_found_by_name(url: str, tmp_path: Path) -> None:
    first, second = opened(url, tmp_path / "one"), opened(url, tmp_path / "two")
    digest = first.put(b"later")
    assert digest not in second
    assert second.path(digest).read_bytes() == b"later"
    other = first.put(b"later still")
    second.refresh()
    assert other in second


def test_delete_removes_here_and_there(url: str, tmp_path: Path) -> None:
    store = opened(url, tmp_path / "one")
    digest = store.put(b"gone")
    store.delete(digest)
    store.delete(digest)
    assert there(url) == []
    assert digest not in store
    assert store.used_bytes() == 0
    with pytest.raises(ArtifactCorrupt, match=f"blob {digest[:12]} is not in the store"):
        store.path(digest)
    assert list((tmp_path / "one" / "incoming").iterdir()) == []


def test_other_bytes_there_are_not_used(url: str, tmp_path: Path) -> None:
    digest = opened(url, tmp_path / "one").put(b"weights")
    remote = RemoteFolder(url)
    remote._fs.pipe_file(remote._path(digest), b"weightz")
    store = opened(url, tmp_path / "two")
    for use in (store.path, store.verify, store.verify_at_rest):
        with pytest.raises(ArtifactCorrupt, match=f"blob {digest[:12]} at .* holds bytes of digest"):
            use(digest)
    assert list(store.copies()) == []
    assert store.used_bytes() == 0


def test_copy_that_rotted_here_is_fetched_again(url: str, tmp_path: Path) -> None:
    store = opened(url, tmp_path / "one")
    digest = store.put(b"weights")
    store.path(digest).write_bytes(b"weightz")
    store.verify(digest)
    assert store.read(digest) == b"weights"


def test_damaged_blob_is_set_aside_here_and_there(url: str, tmp_path: Path) -> None:
    store = opened(url, tmp_path / "one")
    digest = store.put(b"weights")
    assert store.set_aside(digest).read_bytes() == b"weights"
    assert there(url) == []
    assert digest not in store
    assert store.put(b"weights") == digest
    assert there(url) == [digest]


def test_upload_of_a_device_is_there_when_it_is_finished(url: str, tmp_path: Path) -> None:
    store, data = opened(url, tmp_path / "one"), bytes(range(256)) * 4
    partial = store.partial(ASSIGNMENT, ref_of(data))
    partial.write(0, data)
    assert there(url) == []
    assert partial.finish() == ref_of(data).digest
    assert there(url) == [ref_of(data).digest]
    assert store.used_bytes() == len(data)
    assert store.partials() == {}


def test_upload_that_cannot_be_sent_on_is_kept(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, data = opened(url, tmp_path / "one"), b"update " * 100
    partial = store.partial(ASSIGNMENT, ref_of(data))
    partial.write(0, data)

    def unreachable(source: Path, digest: str) -> None:
        raise StoreUnreachable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(store.remote, "upload", unreachable)
        with pytest.raises(StoreUnreachable):
            partial.finish()
    assert ref_of(data).digest not in store
    again = store.partial(ASSIGNMENT, ref_of(data))
    assert again.is_complete
    assert again.finish() in store
    assert store.used_bytes() == len(data)


def test_copies_not_used_lately_make_room(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_cache, "IN_USE_S", 0.0)
    store = opened(url, tmp_path / "one", quota_bytes=100)
    first, second = store.put(b"1" * 40), store.put(b"2" * 40)
    store.path(first)
    third = store.put(b"3" * 40)
    assert {entry.digest for entry in store.copies()} == {first, third}
    assert there(url) == sorted([first, second, third])
    assert store.path(second).read_bytes() == b"2" * 40
    assert store.used_bytes() <= 100
    assert store.room_bytes() == 100


def test_copies_in_use_and_uploads_do_not_make_room(url: str, tmp_path: Path) -> None:
    store = opened(url, tmp_path / "one", quota_bytes=100)
    kept = store.put(b"1" * 40)
    store.partial(ASSIGNMENT, ref_of(b"u" * 50)).write(0, b"u" * 50)
    with pytest.raises(StoreFull, match="90 of 100 bytes hold uploads and copies in use, 20 more are needed"):
        store.put(b"2" * 20)
    assert there(url) == [kept]


def test_blob_put_again_after_long_is_sent_again(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever collects garbage goes by age: a blob that is about to get its row must not look old."""
    store = opened(url, tmp_path / "one")
    digest = store.put(b"again")
    sent: list[str] = []
    upload = store.remote.upload
    monkeypatch.setattr(store.remote, "upload", lambda source, digest: (sent.append(digest), upload(source, digest)))
    store.put(b"again")
    assert sent == []
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + blob_cache.FRESH_S + 1)
    store.put(b"again")
    assert sent == [digest]


def test_failures_are_tried_again_then_named(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_remote, "RETRY_WAITS_S", (0.0, 0.0))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
    store = opened(url, tmp_path / "one")
    failures = [ConnectionError("reset"), ConnectionError("reset")]
    put_file = store.remote._fs.put_file

    def flaky(source: str, path: str) -> None:
        if failures:
            raise failures.pop()
        put_file(source, path)

    monkeypatch.setattr(store.remote._fs, "put_file", flaky)
    digest = store.put(b"third time")
    assert there(url) == [digest]
    failures.extend(ConnectionError("signed with s3cr3t") for _ in range(3))
    with pytest.raises(StoreUnreachable) as caught:
        store.put(b"never")
    assert f"{url} cannot be written to (ConnectionError: signed with ***)" in str(caught.value)
    assert "AWS_ENDPOINT_URL" in caught.value.hint
    assert store.used_bytes() == len(b"third time")
    assert list((tmp_path / "one" / "incoming").iterdir()) == []


def test_address_of_another_run_is_refused(url: str, tmp_path: Path) -> None:
    config = load_config_text(config_text() + f'\n[store]\nblobs = "{url}"\n')
    run = Federation(id="small", config="", config_digest="", seed=3, created_at=12.5)
    for _ in range(2):
        assert isinstance(open_blobs(config, tmp_path / "run", run), CachedBlobs)
    other = Federation(id="small", config="", config_digest="", seed=3, created_at=99.0)
    with pytest.raises(ConfigError, match=r"belongs to run 'small of 12.5.*'; give every run a prefix of its own"):
        open_blobs(config, tmp_path / "other", other)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://AKIA:wJalr@bucket/p", "s3://... holds a user or a key"),
        ("s3://bucket/p?secret=wJalr", "s3://... holds options"),
        ("s3://localhost:9000/bucket", "s3://... names a host"),
        ("simplecache::s3://wJalr@bucket", "no single address"),
        ("s3://bucket/../other", "leads upwards"),
        ("s3:///prefix", "names no bucket"),
        ("wJalr@bucket", "no single address"),
        ("folder", "'folder' is no address; give s3://bucket/prefix"),
    ],
)
def test_addresses_that_are_none_or_hold_secrets_are_refused_without_repeating_them(url: str, words: str) -> None:
    assert words in url_problem(url)
    assert "wJalr" not in url_problem(url)
    with pytest.raises(ConfigError) as caught:
        load_config_text(config_text() + f'\n[store]\nblobs = "{url}"\n')
    assert "wJalr" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/a/b", "gs://b/p", "memory://x", "file:///tmp/x"])
def test_addresses_of_blobs_are_taken(url: str) -> None:
    assert url_problem(url) == ""


def test_unknown_scheme_and_missing_package_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="fsspec knows no nosuch://"):
        RemoteFolder("nosuch://bucket/p")

    def missing(*_: object, **__: object) -> None:
        raise ImportError("no s3fs")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(ConfigError, match=r"pip install 'apportion\[s3\]'"):
        RemoteFolder("s3://bucket/p")


def test_folder_is_used_without_an_address(tmp_path: Path) -> None:
    store = open_blobs(load_config_text(config_text() + "\n[store]\nquota-mb = 1.5\n"), tmp_path)
    assert (type(store).__name__, store.root, store.quota_bytes) == ("BlobStore", tmp_path / "blobs", 1_500_000)
    assert os.listdir(tmp_path) == ["blobs"]

"""Blobs in S3, against a server that speaks it: with s3fs, credentials from the environment, and a server that goes."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.blobs import remote as blob_remote
from coordinator.blobs.cached import CachedBlobs
from coordinator.blobs.remote import RemoteFolder
from edge.contracts.errors import ConfigError, StoreUnreachable

BUCKET = "models"
URL = f"s3://{BUCKET}/runs/one"

# s3fs and what it stands on leave connections to the garbage collector at the end of a process.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A server on this machine that speaks S3."""
    pytest.importorskip("s3fs", reason="s3fs is not installed here (pip install 'apportion[s3]')")
    server_of = pytest.importorskip("moto.server", reason="moto is not installed here (pip install 'apportion[dev]')")
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """An empty bucket, and an environment that leads there."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(blob_remote, "RETRY_WAITS_S", (0.0,))
    there = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
    there.mkdir(BUCKET)
    yield monkeypatch
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    there.rm(BUCKET, recursive=True)


def test_blobs_go_to_the_bucket_and_come_back(s3: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = CachedBlobs(tmp_path / "one", RemoteFolder(URL))
    store.remote.claim("small of 1.0")
    data = bytes(range(256)) * 20_000
    digest = store.put(data)
    assert digest == hashlib.sha256(data).hexdigest()
    (entry,) = store.entries()
    assert (entry.digest, entry.size) == (digest, len(data))
    assert store.remote.modified(digest) == entry.modified
    other = CachedBlobs(tmp_path / "two", RemoteFolder(URL))
    assert other.path(digest).read_bytes() == data
    other.verify_at_rest(digest)
    other.set_aside(digest)
    assert list(other.entries()) == []
    small = other.put(b"small")
    other.delete(small)
    assert list(other.entries()) == []


def test_bucket_that_is_not_there_is_named(s3: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachable, match=r"s3://nowhere/p"):
        CachedBlobs(tmp_path, RemoteFolder("s3://nowhere/p")).put(b"x")


def test_server_that_does_not_answer_is_named_without_the_key(s3: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        s3.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
    with pytest.raises(StoreUnreachable, match=rf"{URL} cannot be listed") as caught:
        CachedBlobs(tmp_path, RemoteFolder(URL))
    assert "something" not in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("place", [URL, "file://{tmp_path}/blobs"])
def test_of_two_runs_that_find_a_prefix_free_one_has_it(place: str, s3: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    first, second = (RemoteFolder(place.format(tmp_path=tmp_path)) for _ in range(2))
    real, answers = second.owners, [[]]
    # The second looks before the first has written, and writes after it.
    s3.setattr(second, "owners", lambda: answers.pop() if answers else real())
    first.claim("one of 1.0")
    with pytest.raises(ConfigError, match=r"belongs to run 'one of 1\.0'"):
        second.claim("two of 2.0")
    assert first.owners() == ["one of 1.0"]
    first.claim("one of 1.0")  # the run's own, again


def test_claim_whose_answer_was_lost_is_its_runs_own(s3: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = RemoteFolder(URL)
    real, lost = folder._fs.pipe_file, []

    def answer_is_lost(path: str, data: bytes, **options: str) -> None:
        real(path, data, **options)
        if not lost:
            lost.append(path)
            raise ConnectionError("the answer is lost")

    s3.setattr(folder._fs, "pipe_file", answer_is_lost)
    folder.claim("one of 1.0")
    assert lost
    assert folder.owners() == ["one of 1.0"]

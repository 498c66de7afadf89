"""Public data over HTTP, from a server of the test's own: whole, resumed, refused; what is made of each archive."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import tarfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from coordinator.data import public
from coordinator.data.datasets import load_dataset
from coordinator.data.download import PART, download
from coordinator.data.public import PUBLIC, PublicData, PublicFile, get, public_data
from edge.contracts.errors import ConfigError, DataError, StoreUnreachable
from edge.training.local_data import read_local_data
from tests.cli.conftest import Command, command

__all__ = ["command"]

BODY = bytes(range(256)) * 40
SHA256 = hashlib.sha256(BODY).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves ``files``; notes what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/file.bin": BODY}
        self.asked: list[str] = []
        self.breaks_after: list[int] = []  # bytes of each of the next answers
        self.knows_ranges = True

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range", "")
        self.server.asked.append(asked)
        body = self.server.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.knows_ranges else 0
        if start >= len(body):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        count = self.server.breaks_after.pop(0) if self.server.breaks_after else len(body)
        self.wfile.write(body[start : start + count])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def fetched(server: Server, path: Path, *, size: int = len(BODY), sha256: str = SHA256) -> Path:
    return download(f"{server.address}/file.bin", path, size=size, sha256=sha256)


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.bin"
    assert fetched(server, path).read_bytes() == BODY
    fetched(server, path)
    assert server.asked == [""]
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]
    path.write_bytes(b"rotten")
    assert fetched(server, path).read_bytes() == BODY


def test_a_download_that_breaks_off_goes_on_where_it_was(server: Server, tmp_path: Path) -> None:
    server.breaks_after = [3000, 4000]
    assert fetched(server, tmp_path / "file.bin").read_bytes() == BODY
    assert server.asked == ["", "bytes=3000-", "bytes=7000-"]


def test_what_an_earlier_process_left_is_gone_on_with(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"file.bin{PART}").write_bytes(BODY[:5000])
    assert fetched(server, tmp_path / "file.bin").read_bytes() == BODY
    assert server.asked == ["bytes=5000-"]


def test_a_server_without_ranges_begins_again(server: Server, tmp_path: Path) -> None:
    server.knows_ranges = False
    (tmp_path / f"file.bin{PART}").write_bytes(b"x" * 5000)
    assert fetched(server, tmp_path / "file.bin").read_bytes() == BODY


@pytest.mark.parametrize(
    ("size", "sha256", "told"),
    [
        (len(BODY), "0" * 64, f"SHA-256 {SHA256}, {'0' * 64} expected"),
        (len(BODY) - 1, SHA256, f"bytes, {len(BODY) - 1} expected"),
        (len(BODY) + 1, SHA256, f"{len(BODY)} bytes, {len(BODY) + 1} expected"),
    ],
)
def test_another_file_is_refused_and_removed(server: Server, tmp_path: Path, size: int, sha256: str, told: str) -> None:
    with pytest.raises(DataError, match=re.escape(told)):
        fetched(server, tmp_path / "file.bin", size=size, sha256=sha256)
    assert not list(tmp_path.iterdir())


def test_a_damaged_part_is_not_used(server: Server, tmp_path: Path) -> None:
    (tmp_path / f"file.bin{PART}").write_bytes(b"x" * 5000)
    with pytest.raises(DataError, match="it is not the file that is meant"):
        fetched(server, tmp_path / "file.bin")
    assert not list(tmp_path.iterdir())
    assert fetched(server, tmp_path / "file.bin").read_bytes() == BODY


def test_a_server_that_refuses_or_is_not_there_is_named(server: Server, tmp_path: Path) -> None:
    server.files.clear()
    with pytest.raises(StoreUnreachable, match=r"/file\.bin: status 404; 0 of 10240 bytes are here"):
        fetched(server, tmp_path / "file.bin")
    server.server_close()
    with pytest.raises(StoreUnreachable, match="0 of 10240 bytes are here and are gone on with"):
        fetched(server, tmp_path / "file.bin")


def served(server: Server, name: str, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> PublicData:
    """The data set ``name`` with files of the test's own."""
    server.files = {f"/{file}": body for file, body in files.items()}
    own = tuple(
        PublicFile(f"{server.address}/{file}", len(body), hashlib.sha256(body).hexdigest())
        for file, body in files.items()
    )
    data = PublicData(own, "of the test", PUBLIC[name].write, PUBLIC[name].use)
    monkeypatch.setitem(public.PUBLIC, name, data)
    return data


def archive(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    return packed.getvalue()


def test_cifar10_is_what_its_source_reads(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(6 * 2 * 3073, dtype=np.int64).reshape(6, 2, 3073).astype(np.uint8)
    rows[:, :, 0] = [[i, 9 - i] for i in range(6)]
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    members = {f"cifar-10-batches-bin/{n}.bin": rows[i].tobytes() for i, n in enumerate(names)}
    data = served(server, "cifar10", {"cifar.tar.gz": archive(members)}, monkeypatch)
    assert get(data, tmp_path) == [tmp_path / "cifar10.npz"]
    read = load_dataset("cifar10", tmp_path, 0, 0.2)
    assert read.y_train.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert read.y_test.tolist() == [5, 4]
    assert np.array_equal(read.x_test[1].reshape(-1), rows[5, 1, 1:])


def test_an_archive_without_a_batch_is_told(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = served(server, "cifar10", {"cifar.tar.gz": archive({"other.bin": b""})}, monkeypatch)
    with pytest.raises(DataError, match=r"has no cifar-10-batches-bin/data_batch_1\.bin"):
        get(data, tmp_path)


def test_mnist_is_what_devices_read(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.arange(3 * 784, dtype=np.int64).astype(np.uint8)
    files = {}
    for prefix, labels in (("train", [7, 1, 2]), ("t10k", [3, 4, 5])):
        files[f"{prefix}-images-idx3-ubyte.gz"] = gzip.compress(bytes(16) + pixels.tobytes())
        files[f"{prefix}-labels-idx1-ubyte.gz"] = gzip.compress(bytes(8) + bytes(labels))
    get(served(server, "mnist", files, monkeypatch), tmp_path)
    train = read_local_data(str(tmp_path / "train"))
    assert np.asarray(train.y).tolist() == [7, 1, 2]
    assert np.asarray(train.x).shape == (3, 1, 28, 28)
    assert np.asarray(train.x).reshape(-1).tolist() == pixels.tolist()


def test_imdb_is_a_folder_per_class_and_nothing_beside(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {
        "aclImdb/train/pos/0_9.txt": b"good",
        "aclImdb/test/neg/1_2.txt": b"bad",
        "aclImdb/train/unsup/0_0.txt": b"?",
        "aclImdb/train/pos/../../../../outside.txt": b"!",
    }
    get(served(server, "imdb", {"imdb.tar.gz": archive(members)}, monkeypatch), tmp_path / "in")
    texts = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.txt"))
    assert texts == ["in/test/neg/1_2.txt", "in/train/pos/0_9.txt"]


def test_command_says_the_licence_and_what_to_do(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    members = {"aclImdb/train/pos/0_9.txt": b"good"}
    served(server, "imdb", {"imdb.tar.gz": archive(members)}, monkeypatch)
    done = command("data", "get", "imdb", str(tmp_path))
    assert done.status == 0
    assert "imdb: of the test" in done.err
    assert f'path = "{tmp_path}"' in done.out


def test_every_data_set_is_exact() -> None:
    for name, data in PUBLIC.items():
        assert data.licence, name
        assert len({file.name for file in data.files}) == len(data.files)
        for file in data.files:
            assert file.url.startswith("https://")
            assert re.fullmatch("[0-9a-f]{64}", file.sha256)
            assert file.size > 0
    with pytest.raises(ConfigError, match="'imagenet' is not known; known: cifar10, imdb, mnist"):
        public_data("imagenet")

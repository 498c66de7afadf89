"""Blobs over HTTPS: parts of them for whoever has a ticket; requests that become blocks, or go over MQTT instead."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from coordinator.blobs.blob_store import BlobStore
from coordinator.brokers.broker_files import server_files
from coordinator.identity.authority import Authority
from coordinator.web.device_services import BlobService
from edge.contracts.envelope import unseal
from edge.contracts.errors import BrokerUnreachable, IdentityRefused
from edge.contracts.messages import Block, Get
from edge.transport.base import Event, Received
from edge.transport.range_requests import MAX_FAILURES, RangeRequests

BLOB = bytes(range(256)) * 1200
URL = "https://localhost:0"


class Clock:
    """A clock that stands still until it is moved."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "identity"
    Authority.create(folder).close()
    return folder


@pytest.fixture
def service(identity: Path, tmp_path: Path) -> Iterator[BlobService]:
    with BlobService(BlobStore(tmp_path / "blobs"), URL, *server_files(identity, "localhost"), now=Clock()) as service:
        yield service


def context(identity: Path) -> Callable[[], ssl.SSLContext]:
    return lambda: ssl.create_default_context(cafile=str(identity / "ca.pem"))


def get(identity: Path, url: str, headers: dict[str, str] | None = None, method: str = "GET") -> tuple[int, str, bytes]:
    parts = urlsplit(url)
    connection = HTTPSConnection(parts.hostname or "", parts.port, timeout=10, context=context(identity)())
    try:
        connection.request(method, parts.path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers.get("Content-Range", ""), answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [
        ("bytes=0-99", 0, 99),
        ("bytes=100-", 100, len(BLOB) - 1),
        (f"bytes=0-{10**17}", 0, len(BLOB) - 1),
        (f"bytes={len(BLOB) - 1}-{len(BLOB)}", len(BLOB) - 1, len(BLOB) - 1),
    ],
)
def test_part_is_the_one_that_was_asked_for(
    service: BlobService, identity: Path, asked: str, first: int, last: int
) -> None:
    url = service.url_for("pi-1", 60) + service.blobs.put(BLOB)
    assert get(identity, url, {"Range": asked}) == (206, f"bytes {first}-{last}/{len(BLOB)}", BLOB[first : last + 1])
    (sent,) = service.account.take()
    assert (sent.device, sent.scheme, sent.payload_bytes) == ("pi-1", "https", last + 1 - first)


def test_whole_blob_comes_without_a_range(service: BlobService, identity: Path) -> None:
    url = service.url_for("pi-1", 60) + service.blobs.put(BLOB)
    assert get(identity, url)[2] == BLOB


@pytest.mark.parametrize("asked", [f"bytes={len(BLOB)}-", "bytes=5-4", "bytes=-5", "lines=0-1", "bytes=0-1,3-4"])
def test_range_that_is_none_gets_416(service: BlobService, identity: Path, asked: str) -> None:
    url = service.url_for("pi-1", 60) + service.blobs.put(BLOB)
    assert get(identity, url, {"Range": asked}) == (416, f"bytes */{len(BLOB)}", b"")


def test_ticket_is_for_its_device_until_its_end(service: BlobService, identity: Path) -> None:
    digest = service.blobs.put(BLOB)
    url = service.url_for("pi-1.lab", 60)
    ticket = url.rstrip("/").rsplit("/", 1)[1]
    assert service.holder(ticket) == "pi-1.lab"
    device, expires, seal = ticket.rsplit(".", 2)
    forged = [
        f"pi-2.{expires}.{seal}",
        f"{device}.{int(expires) + 1}.{seal}",
        f"{device}.{expires}.{'0' * 64}",
        f"{device}.{expires}.",
        f"{device}.-1.{seal}",
        f"{device}.{'9' * 40}.{seal}",
        "x",
        "%2e%2e",
    ]
    for tried in forged:
        assert service.holder(tried) is None
        assert get(identity, url.replace(ticket, tried) + digest)[0] == 403
    service._tickets._now.now += 119  # type: ignore[attr-defined]
    assert service.holder(ticket) == "pi-1.lab"
    service._tickets._now.now += 2  # type: ignore[attr-defined]
    assert get(identity, url + digest) == (403, "", b"")


def test_path_that_names_no_blob_reads_no_file(service: BlobService, identity: Path) -> None:
    url = service.url_for("pi-1", 60)
    assert get(identity, url + "a" * 64)[0] == 404
    for tried in ("../../ca.key", "A" * 64, "a" * 63, "", "%2e%2e/x"):
        assert get(identity, url + tried)[0] == 403
    assert get(identity, url + "a" * 64, method="PUT")[0] == 404
    assert get(identity, url + "a" * 64, method="DELETE")[0] == 501


def test_service_is_only_there_by_its_certificate(service: BlobService, identity: Path, tmp_path: Path) -> None:
    Authority.create(tmp_path / "other").close()
    url = service.url_for("pi-1", 60) + service.blobs.put(BLOB)
    with pytest.raises(ssl.SSLCertVerificationError):
        get(tmp_path / "other", url)
    with pytest.raises(IdentityRefused, match=r"no valid certificate and key of a server 'broker\.local'"):
        server_files(identity, "broker.local")


def test_taken_port_says_what_to_change(service: BlobService, identity: Path, tmp_path: Path) -> None:
    taken = urlsplit(service.url_for("x", 1)).port
    with pytest.raises(BrokerUnreachable, match=f"cannot be served at https://localhost:{taken}") as error:
        BlobService(service.blobs, f"https://localhost:{taken}", *server_files(identity, "localhost"))
    assert "$.broker.bulk" in error.value.hint


def test_connection_beyond_the_limit_takes_the_place_of_a_silent_one(
    identity: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.web.device_services.MAX_CONNECTIONS", 1)
    with BlobService(BlobStore(tmp_path / "blobs"), URL, *server_files(identity, "localhost")) as service:
        url = service.url_for("pi-1", 60) + service.blobs.put(BLOB)
        with socket.create_connection(("127.0.0.1", urlsplit(url).port), 10) as silent:
            time.sleep(0.2)
            assert get(identity, url)[2] == BLOB
            silent.settimeout(5)
            assert silent.recv(1) == b""


class Asked:
    """What a device's requests gave: blocks over HTTPS, and what was asked over MQTT instead."""

    def __init__(self, url: str, identity: Path) -> None:
        self.blocks: list[Block] = []
        self.instead: list[Get] = []
        self._changed = threading.Condition()
        self.requests = RangeRequests(url, context(identity), deliver=self._deliver, fallback=self._fallback)

    def _deliver(self, event: Event) -> None:
        assert isinstance(event, Received)
        with self._changed:
            self.blocks.append(unseal(event.payload).read(Block))
            self._changed.notify_all()

    def _fallback(self, asked: Get) -> None:
        with self._changed:
            self.instead.append(asked)
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.blocks) + len(self.instead) >= count, 20)


@pytest.fixture
def no_idling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.transport.range_requests.IDLE_S", 0.2)


@pytest.mark.slow
@pytest.mark.usefixtures("no_idling")
def test_requests_give_blocks_as_mqtt_would(service: BlobService, identity: Path) -> None:
    digest = service.blobs.put(BLOB)
    asked = Asked(service.url_for("pi-1", 60), identity)
    for offset in range(0, len(BLOB), 100_000):
        asked.requests(Get(digest, "raw", offset, min(100_000, len(BLOB) - offset)))
    asked.wait(4)
    assert asked.instead == []
    assert b"".join(block.data for block in asked.blocks) == BLOB
    assert {(block.digest, block.total) for block in asked.blocks} == {(digest, len(BLOB))}
    time.sleep(0.6)  # the thread ends when it idles, and the next request starts another
    assert not [thread for thread in threading.enumerate() if thread.name == "bulk"]
    asked.requests(Get(digest, "raw", 0, 10))
    asked.wait(5)
    assert asked.blocks[-1].data == BLOB[:10]
    time.sleep(0.4)


@pytest.mark.usefixtures("no_idling")
def test_what_fails_is_asked_over_mqtt_and_soon_everything(service: BlobService, identity: Path) -> None:
    missing = [Get(digit * 64, "raw", 0, 10) for digit in "abcdef"]
    asked = Asked(service.url_for("pi-1", 60), identity)
    for wanted in missing:
        asked.requests(wanted)
    asked.wait(len(missing))
    assert sorted(asked.instead, key=lambda wanted: wanted.digest) == missing
    before = threading.active_count()
    asked.requests(Get(service.blobs.put(BLOB), "raw", 0, 10))
    assert len(asked.instead) == len(missing) + 1 > MAX_FAILURES
    assert threading.active_count() <= before
    time.sleep(0.4)


@pytest.mark.usefixtures("no_idling")
@pytest.mark.parametrize("url", ["http://localhost:1/v1/t/", "https://localhost:1/v1/t/", "https://", "words"])
def test_address_that_serves_nothing_falls_back(url: str, identity: Path) -> None:
    asked = Asked(url, identity)
    asked.requests(Get("a" * 64, "raw", 0, 10))
    asked.wait(1)
    assert len(asked.instead) == 1
    time.sleep(0.3)

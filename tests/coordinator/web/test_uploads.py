"""Updates by ``PUT``: the pieces of an offered one arrive, and what was not offered or is another device's does not."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from coordinator.brokers.broker_files import server_files
from coordinator.identity.authority import Authority
from coordinator.ledger.ledger import Ledger
from coordinator.web.device_services import BlobService
from coordinator.web.uploads import MAX_PUT_BYTES
from edge.contracts.envelope import unseal
from edge.contracts.messages import Ack, Grant, Offer, Put
from edge.contracts.plan import BlobRef
from edge.serving.budgets import BYTES, Budgets
from edge.transport.base import Event, Received
from edge.transport.put_requests import MAX_FAILURES, PIECE_BYTES, PutRequests
from tests.coordinator.fleet.cutting_relay import CuttingRelay
from tests.coordinator.messaging.inbox_bench import FEDERATION, UPDATE, MessageLoop, ref_of

LARGE = np.random.default_rng(4).bytes(3_400_000)
"""Within the limit of an offer, which leaves 4 MiB to a header; not what was ordered."""


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "identity"
    Authority.create(folder).close()
    return folder


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[MessageLoop]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation=FEDERATION, config="", seed=0) as ledger:
        handler = MessageLoop(tmp_path, ledger)
        yield handler
        handler.publisher.close()


@pytest.fixture
def service(identity: Path, handler: MessageLoop) -> Iterator[BlobService]:
    files = server_files(identity, "localhost")
    with BlobService(handler.blobs, "https://localhost:0", *files, account=handler.publisher.account) as service:
        service.take_updates(handler.inbox.uploads)
        yield service


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.transport.put_requests.PAUSE_S", 0.05)


class Site:
    """What a device knows of the service, and its requests."""

    def __init__(self, service: BlobService, identity: Path, handler: MessageLoop) -> None:
        self._context = ssl.create_default_context(cafile=str(identity / "ca.pem"))
        self._service = service
        self._handler = handler

    def url(self, ticket_of: str = "pi-1", update_of: str = "pi-1") -> str:
        return self._service.upload_to(self._service.url_for(ticket_of, 60)) + self._handler.id(update_of)

    def put(self, span: str | None, body: bytes = b"", *, url: str = "", length: str | None = "") -> tuple[int, str]:
        """Status of a ``PUT`` with that ``Content-Range``, and how far the upload has come."""
        parts = urlsplit(url or self.url())
        connection = HTTPSConnection(parts.hostname or "", parts.port, timeout=10, context=self._context)
        try:
            connection.putrequest("PUT", parts.path)
            if span is not None:
                connection.putheader("Content-Range", span)
            if length is not None:
                connection.putheader("Content-Length", length or str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.headers.get("Upload-Offset", "")
        finally:
            connection.close()


@pytest.fixture
def site(service: BlobService, identity: Path, handler: MessageLoop) -> Site:
    return Site(service, identity, handler)


def offer(handler: MessageLoop, data: bytes = UPDATE, device: str = "pi-1") -> BlobRef:
    ref = ref_of(data)
    handler.gets(device, "offer", Offer(handler.id(device), ref))
    return ref


def span(data: bytes, first: int, end: int) -> tuple[str, bytes]:
    return f"bytes {first}-{end - 1}/{len(data)}", data[first:end]


def test_pieces_arrive_and_the_report_counts_them(handler: MessageLoop, site: Site) -> None:
    ref = offer(handler)
    assert site.put(f"bytes */{len(UPDATE)}") == (204, "0")
    assert site.put(*span(UPDATE, 0, 1000)) == (204, "1000")
    assert site.put(*span(UPDATE, 1000, len(UPDATE))) == (204, str(len(UPDATE)))
    assert handler.report(ref) == [("ack", Ack(handler.id(), True))]
    assert handler.state() == "reported"
    (up,) = [row for row in handler.publisher.account.take() if row.scheme == "https"]
    assert (up.device, up.direction, up.payload_bytes, up.wire_bytes) == ("pi-1", "up", len(UPDATE), len(UPDATE))


def test_blocks_and_pieces_go_into_the_same_upload(handler: MessageLoop, site: Site) -> None:
    ref = offer(handler)
    assert site.put(*span(UPDATE, 0, 1000))[0] == 204
    ((_, grant),) = handler.gets("pi-1", "put", Put(handler.id(), ref.digest, 1000, UPDATE[1000:1500]))
    assert grant.offset == 1500
    assert site.put(*span(UPDATE, 1000, 2000)) == (409, "1500")
    assert site.put(*span(UPDATE, 1500, len(UPDATE))) == (204, str(len(UPDATE)))
    assert handler.report(ref) == [("ack", Ack(handler.id(), True))]


def test_update_that_was_never_offered_is_not_read(handler: MessageLoop, site: Site) -> None:
    assert site.put(*span(UPDATE, 0, 1000)) == (404, "")
    assert list((handler.blobs.root / "partial").iterdir()) == []


def test_ticket_opens_its_own_devices_uploads_only(handler: MessageLoop, service: BlobService, site: Site) -> None:
    offer(handler)
    offer(handler, device="pi-2")
    for url in (site.url("pi-2", "pi-1"), site.url("pi-1", "pi-2")):
        assert site.put(*span(UPDATE, 0, 1000), url=url) == (404, "")
    ticket = urlsplit(service.url_for("pi-1", 60)).path.split("/")[2]
    for forged in ("x", ticket.replace("pi-1", "pi-2"), f"{ticket[:-1]}{'0' if ticket[-1] != '0' else '1'}"):
        assert site.put(*span(UPDATE, 0, 1000), url=site.url().replace(ticket, forged)) == (403, "")
    for path in ("", "a" * 63, "../x", "A" * 64):
        assert site.put(*span(UPDATE, 0, 1000), url=site.url().replace(handler.id(), path)) == (403, "")
    assert [row for row in handler.publisher.account.take() if row.scheme == "https"] == []
    assert all(path.stat().st_size == 0 for path in (handler.blobs.root / "partial").iterdir())


def test_larger_update_than_offered_is_refused(handler: MessageLoop, site: Site) -> None:
    offer(handler)
    size = len(UPDATE)
    assert site.put(f"bytes 0-999/{size + 1}", UPDATE[:1000]) == (413, "0")
    assert site.put(f"bytes 0-{size}/{size}", UPDATE + b"x") == (413, "")
    assert site.put(f"bytes */{size + 1}") == (413, "0")
    offer(handler, LARGE)
    assert site.put(f"bytes 0-{MAX_PUT_BYTES}/{len(LARGE)}", LARGE[: MAX_PUT_BYTES + 1]) == (413, "0")
    assert site.put(f"bytes */{len(LARGE)}") == (204, "0")


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        "",
        "bytes",
        "bytes 0-999",
        "bytes 9-0/2000",
        "bytes -1-9/2000",
        "lines 0-999/2000",
        "bytes 0-998/2000",
        "bytes */2000",
        "bytes 0-999/*",
        f"bytes 0-{10**30}/{10**31}",
        "bytes 0-999/2000, 0-1/2",
    ],
)
def test_garbage_range_is_refused(handler: MessageLoop, site: Site, garbage: str | None) -> None:
    offer(handler)
    assert site.put(garbage, UPDATE[:1000]) == (400, "")
    assert site.put(f"bytes */{len(UPDATE)}") == (204, "0")


@pytest.mark.parametrize(("length", "status"), [(None, 411), ("-5", 400), ("many", 400), ("9" * 30, 400)])
def test_length_that_is_none_is_refused(handler: MessageLoop, site: Site, length: str | None, status: int) -> None:
    offer(handler)
    assert site.put(f"bytes 0-999/{len(UPDATE)}", UPDATE[:1000], length=length) == (status, "")


def test_update_that_is_settled_is_not_read_again(handler: MessageLoop, site: Site) -> None:
    ref = offer(handler)
    assert site.put(*span(UPDATE, 0, len(UPDATE))) == (204, str(len(UPDATE)))
    handler.report(ref)
    assert site.put(*span(UPDATE, 0, len(UPDATE))) == (404, "")


class Sent:
    """Requests of a device for one update, and how far each brought it."""

    def __init__(self, url: str, identity: Path, handler: MessageLoop, ref: BlobRef, update: Path) -> None:
        self.offsets: list[int] = []
        self._changed = threading.Condition()
        context: Callable[[], ssl.SSLContext] = lambda: ssl.create_default_context(cafile=str(identity / "ca.pem"))  # noqa: E731
        self.requests = PutRequests(url, context, handler.id(), ref, update, deliver=self._deliver)

    def _deliver(self, event: Event) -> None:
        assert isinstance(event, Received)
        with self._changed:
            self.offsets.append(unseal(event.payload).read(Grant).offset)
            self._changed.notify_all()

    def wait(self, offset: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: offset in self.offsets, 30), self.offsets

    def end(self) -> None:
        for thread in threading.enumerate():
            if thread.name == "upload":
                thread.join(30)
                assert not thread.is_alive()


@pytest.fixture
def update(tmp_path: Path) -> Path:
    path = tmp_path / "update"
    path.write_bytes(LARGE)
    return path


def test_cut_off_upload_goes_on_from_where_it_came(
    handler: MessageLoop, service: BlobService, site: Site, identity: Path, update: Path
) -> None:
    ref = offer(handler, LARGE)
    with CuttingRelay(urlsplit(site.url()).port or 0) as relay:
        relay.cut_after(PIECE_BYTES + PIECE_BYTES // 2)
        url = site.url().replace(f":{urlsplit(site.url()).port}/", f":{relay.port}/")
        sent = Sent(url, identity, handler, ref, update)
        sent.requests.go_on(0)
        sent.wait(len(LARGE))
        sent.end()
        assert relay.cuts == 1
    assert sent.offsets == sorted(sent.offsets)
    assert sent.offsets[0] == PIECE_BYTES
    assert PIECE_BYTES <= sent.offsets[1] < 2 * PIECE_BYTES  # the second piece was cut
    (up,) = [row for row in handler.publisher.account.take() if row.scheme == "https"]
    assert up.payload_bytes == up.wire_bytes == len(LARGE)
    assert (handler.blobs.root / "partial" / f"{handler.id()}-{ref.digest}").read_bytes() == LARGE


def test_upload_that_is_not_expected_waits_for_the_next_grant(
    handler: MessageLoop, site: Site, identity: Path, update: Path
) -> None:
    sent = Sent(site.url(), identity, handler, ref_of(LARGE), update)
    sent.requests.go_on(0)
    sent.end()
    assert sent.offsets == []
    assert not sent.requests.has_given_up
    offer(handler, LARGE)
    sent.requests.go_on(0)
    sent.wait(len(LARGE))
    sent.end()


@pytest.mark.parametrize("url", ["http://localhost:1/v1/t/upload/a", "https://localhost:1/v1/t/upload/a", "words"])
def test_address_that_takes_nothing_is_given_up(handler: MessageLoop, identity: Path, update: Path, url: str) -> None:
    sent = Sent(url, identity, handler, ref_of(LARGE), update)
    sent.requests.go_on(0)
    sent.end()
    assert sent.requests.has_given_up
    sent.requests.go_on(0)
    assert not [thread for thread in threading.enumerate() if thread.name == "upload"]


def test_place_that_takes_pieces_and_comes_no_further_is_given_up(
    handler: MessageLoop,
    service: BlobService,
    site: Site,
    identity: Path,
    update: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ref = offer(handler, LARGE)
    monkeypatch.setattr(type(handler.inbox.uploads), "write", lambda handler, device, assignment, offset, data: 0)
    sent = Sent(site.url(), identity, handler, ref, update)
    sent.requests.go_on(0)
    sent.end()
    assert sent.requests.has_given_up
    assert len(sent.offsets) < MAX_FAILURES


def test_ticket_opens_what_the_devices_order_names_and_no_more(
    service: BlobService, identity: Path, handler: MessageLoop
) -> None:
    service.only(handler.inbox.named)
    others_update = handler.blobs.put(b"of another device")
    context = ssl.create_default_context(cafile=str(identity / "ca.pem"))
    found = {}
    for digest in (handler.weights, others_update):
        parts = urlsplit(service.url_for("pi-1", 60) + digest)
        connection = HTTPSConnection(parts.hostname or "", parts.port, timeout=10, context=context)
        try:
            connection.request("GET", parts.path)
            response = connection.getresponse()
            found[digest] = response.status, response.read()
        finally:
            connection.close()
    assert found == {handler.weights: (200, b"weights"), others_update: (404, b"")}


def test_pieces_beyond_a_budget_are_refused_before_they_are_read(
    handler: MessageLoop, site: Site, service: BlobService
) -> None:
    offer(handler)
    budgets = Budgets()
    service.only(handler.inbox.named, budgets)
    while budgets.admits("pi-1", "put", BYTES.at_once // 8):
        pass
    assert site.put(*span(UPDATE, 0, len(UPDATE))) == (429, "")
    budgets.offered("pi-1", handler.id(), len(UPDATE))
    assert site.put(*span(UPDATE, 0, len(UPDATE))) == (204, str(len(UPDATE)))

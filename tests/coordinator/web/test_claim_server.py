"""Claims over HTTPS: one certificate for a token, whoever asks and however; nothing else for anybody."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509

from coordinator.blobs.blob_store import BlobStore
from coordinator.brokers.broker_files import server_files
from coordinator.fleet.claim_handler import ClaimHandler
from coordinator.fleet.claim_link import claim_link, root_fingerprint
from coordinator.fleet.rate_limit import RateLimit
from coordinator.identity.authority import Authority
from coordinator.identity.claims import create_token
from coordinator.web.device_services import BlobService, claim_server
from coordinator.web.server import WebServer
from edge.contracts.claims import CERTIFICATE_PATH, CLAIM_PATH, MAX_CLAIM_BYTES, ClaimLink, ClaimReply, ClaimRequest
from edge.contracts.errors import BrokerUnreachable
from edge.identity.device_identity import make_request
from edge.identity.enrolment import enrol

URL = "https://localhost:0"


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "identity"
    Authority.create(folder).close()
    return folder


@pytest.fixture(scope="module")
def service(identity: Path) -> ClaimHandler:
    return ClaimHandler(
        identity, federation="digits", broker="mqtts://broker.local", limit=RateLimit((1000, 1.0), (1000, 1.0))
    )


@pytest.fixture(scope="module")
def server(identity: Path, service: ClaimHandler) -> Iterator[WebServer]:
    with claim_server(identity, URL, service) as server:
        yield server


def token_for(identity: Path, device: str, expires_s: int = 3600) -> str:
    with Authority(identity) as authority:
        return create_token(authority, device, expires_s)


def csr(folder: Path, device: str) -> str:
    return make_request(folder, device).request.read_text()


class Answer:
    """Status and JSON of an answer."""

    def __init__(self, status: int, body: bytes, retry_after: str | None) -> None:
        self.status, self.body, self.retry_after = status, body, retry_after

    @property
    def error(self) -> dict[str, str]:
        return json.loads(self.body)["error"]


def ask(
    server: WebServer,
    identity: Path,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    parts = urlsplit(server.address)
    context = ssl.create_default_context(cafile=str(identity / "ca.pem"))
    connection = HTTPSConnection("localhost", parts.port, timeout=10, context=context)
    try:
        connection.request(method, path, body, headers or {})
        found = connection.getresponse()
        return Answer(found.status, found.read(), found.headers.get("Retry-After"))
    finally:
        connection.close()


def claim(server: WebServer, identity: Path, token: str, request: str) -> Answer:
    return ask(server, identity, "POST", CLAIM_PATH, ClaimRequest(token, request).to_bytes())


def drip(connection: ssl.SSLSocket, seconds: float) -> None:
    """A byte at a time, so that no single read of the other side times out."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        connection.sendall(b"{")
        time.sleep(0.1)


def test_claim_gives_certificate_root_key_and_where_to_go(
    server: WebServer, service: ClaimHandler, identity: Path, tmp_path: Path
) -> None:
    request = csr(tmp_path, "pi-01")
    answer = claim(server, identity, token_for(identity, "pi-01"), request)
    assert answer.status == 200
    reply = ClaimReply.from_bytes(answer.body)
    assert (reply.device, reply.federation, reply.broker) == ("pi-01", "digits", "mqtts://broker.local")
    certificate = x509.load_pem_x509_certificate(reply.certificate.encode())
    assert certificate.public_key() == x509.load_pem_x509_csr(request.encode()).public_key()
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(reply.ca.encode()))
    assert reply.ca.encode() == (identity / "ca.pem").read_bytes()
    assert reply.signing_public.encode() == (identity / "signing.pub").read_bytes()
    assert "pi-01" in service.claimed


def test_claim_used_twice_says_when_and_issues_nothing(server: WebServer, identity: Path, tmp_path: Path) -> None:
    token = token_for(identity, "pi-02")
    assert claim(server, identity, token, csr(tmp_path / "a", "pi-02")).status == 200
    again = claim(server, identity, token, csr(tmp_path / "b", "pi-02"))
    assert (again.status, again.error["code"]) == (410, "token-used")
    assert f"for 'pi-02' was used {time.strftime('%Y-%m-%d', time.gmtime())}" in again.error["message"]
    assert "apportion ca revoke pi-02" in again.error["hint"]
    with Authority(identity) as authority:
        assert len(authority.records.certificates("device", "pi-02")) == 1


def test_claims_at_the_same_time_give_one_certificate(server: WebServer, identity: Path, tmp_path: Path) -> None:
    token = token_for(identity, "pi-03")
    requests = [csr(tmp_path / str(number), "pi-03") for number in range(6)]
    statuses: list[int] = []
    start = threading.Barrier(len(requests))

    def race(request: str) -> None:
        start.wait(10)
        statuses.append(claim(server, identity, token, request).status)

    threads = [threading.Thread(target=race, args=(request,)) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(statuses) == [200, 410, 410, 410, 410, 410]
    with Authority(identity) as authority:
        assert len(authority.records.certificates("device", "pi-03")) == 1


@pytest.mark.slow
def test_claim_expired_is_gone(server: WebServer, identity: Path, tmp_path: Path) -> None:
    token = token_for(identity, "pi-04", 1)
    time.sleep(1.1)
    answer = claim(server, identity, token, csr(tmp_path, "pi-04"))
    assert (answer.status, answer.error["code"]) == (410, "token-expired")
    assert "expired" in answer.error["message"]
    assert "apportion ca token pi-04" in answer.error["hint"]


def test_claim_with_wrong_secret_learns_nothing(server: WebServer, identity: Path, tmp_path: Path) -> None:
    token = token_for(identity, "pi-05")
    wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
    request = csr(tmp_path, "pi-05")
    answers = {claim(server, identity, tried, request).body for tried in (wrong, "0" * 16 + token[16:], "x", "")}
    assert len(answers) == 1
    assert b"no-such-token" in answers.pop()
    assert claim(server, identity, token, request).status == 200


def test_claim_for_another_device_leaves_the_token_good(server: WebServer, identity: Path, tmp_path: Path) -> None:
    token = token_for(identity, "pi-06")
    answer = claim(server, identity, token, csr(tmp_path / "other", "pi-99"))
    assert (answer.status, answer.error["code"]) == (422, "identity-refused")
    assert "the request is for ['pi-99'], not for device 'pi-06'" in answer.error["message"]
    assert claim(server, identity, token, "no request at all").status == 422
    assert claim(server, identity, token, csr(tmp_path / "own", "pi-06")).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"words",
        b"[]",
        b'{"token": "x"}',
        b'{"token": 1, "csr": "x"}',
        b"[" * 20_000,
        b"\xff\xfe{}",
        b'{"token": "\\ud800", "csr": ""}',
    ],
)
def test_claim_that_is_none_is_refused_without_its_words(server: WebServer, identity: Path, body: bytes) -> None:
    answer = ask(server, identity, "POST", CLAIM_PATH, body)
    assert (answer.status, answer.error["code"]) == (400, "not-a-claim")
    assert answer.error["message"].startswith(f"{len(body)} bytes are not JSON")


def test_claim_too_large_is_not_read(server: WebServer, identity: Path) -> None:
    parts = urlsplit(server.address)
    context = ssl.create_default_context(cafile=str(identity / "ca.pem"))
    with socket.create_connection(("localhost", parts.port or 0), 10) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            head = f"POST {CLAIM_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_CLAIM_BYTES + 1}\r\n\r\n"
            connection.sendall(head.encode())  # and not a byte of it
            answer = connection.recv(4096) + connection.recv(4096)
    assert b" 413 " in answer.split(b"\r\n")[0]
    assert f"over the limit of {MAX_CLAIM_BYTES}; it was not read".encode() in answer


def refusal_of_length(server: WebServer, identity: Path, name: str, value: str) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=str(identity / "ca.pem"))
    connection = HTTPSConnection("localhost", urlsplit(server.address).port, timeout=10, context=context)
    connection.putrequest("POST", CLAIM_PATH)
    connection.putheader(name, value.encode("latin-1"))
    connection.endheaders()
    found = connection.getresponse()
    answer = found.status, found.read()
    connection.close()
    return answer


@pytest.mark.parametrize(
    ("name", "value", "status", "code"),
    [("Content-Length", "9" * 20, 413, "too-large"), ("Transfer-Encoding", "chunked", 411, "no-length")],
)
def test_claim_of_no_known_length_is_refused(
    server: WebServer, identity: Path, name: str, value: str, status: int, code: str
) -> None:
    found, body = refusal_of_length(server, identity, name, value)
    assert (found, json.loads(body)["error"]["code"]) == (status, code)


@pytest.mark.parametrize("length", ["9" * 30, "-1", "²"])
def test_length_that_is_none_in_http_is_no_request(server: WebServer, identity: Path, length: str) -> None:
    assert refusal_of_length(server, identity, "Content-Length", length)[0] == 400


@pytest.mark.slow
def test_claim_of_a_slow_client_is_cut_off(
    identity: Path, service: ClaimHandler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("coordinator.web.claims.BODY_TIMEOUT_S", 1.0)
    context = ssl.create_default_context(cafile=str(identity / "ca.pem"))
    with claim_server(identity, URL, service) as server:
        began = time.monotonic()
        with socket.create_connection(("localhost", urlsplit(server.address).port or 0), 10) as plain:
            with context.wrap_socket(plain, server_hostname="localhost") as connection:
                connection.sendall(f"POST {CLAIM_PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n".encode())
                with pytest.raises(OSError):
                    drip(connection, 10.0)
        assert 0.8 < time.monotonic() - began < 5
        assert claim(server, identity, token_for(identity, "pi-07"), csr(tmp_path, "pi-07")).status == 200


@pytest.mark.slow
def test_claim_of_a_silent_client_keeps_nobody_waiting(
    identity: Path, service: ClaimHandler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("coordinator.web.device_services.CLAIM_TIMEOUT_S", 1.0)
    with claim_server(identity, URL, service) as server:
        with socket.create_connection(("localhost", urlsplit(server.address).port or 0), 10) as silent:
            assert claim(server, identity, token_for(identity, "pi-08"), csr(tmp_path, "pi-08")).status == 200
            silent.settimeout(5)
            try:
                ended = silent.recv(1)
            except ConnectionError:
                ended = b""
            assert ended == b""


def test_claims_too_many_are_told_when_to_come_back(identity: Path, tmp_path: Path) -> None:
    now = [0.0]
    service = ClaimHandler(identity, limit=RateLimit((2, 0.5), (100, 5.0), now=lambda: now[0]))
    token, request = token_for(identity, "pi-09"), csr(tmp_path, "pi-09")
    with claim_server(identity, URL, service) as server:
        assert [claim(server, identity, "x", request).status for _ in range(2)] == [403, 403]
        refused = claim(server, identity, token, request)
        assert (refused.status, refused.error["code"], refused.retry_after) == (429, "too-many-claims", "3")
        now[0] = 2.0
        assert claim(server, identity, token, request).status == 200


def test_rate_limit_counts_each_address_and_all() -> None:
    now = [0.0]
    limit = RateLimit((2, 1.0), (3, 0.5), now=lambda: now[0])
    assert [limit.wait_s("a") for _ in range(3)] == [0.0, 0.0, 1.0]
    assert [limit.wait_s("b") for _ in range(2)] == [0.0, 2.0]
    now[0] = 2.0
    assert [limit.wait_s("b"), limit.wait_s("b")] == [0.0, 2.0]


def test_rate_limit_forgets_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.fleet.rate_limit._MAX_ADDRESSES", 10)
    limit = RateLimit((1, 1e-9), (10_000, 1.0))
    for number in range(100):
        limit.wait_s(f"10.0.0.{number}")
    assert len(limit._left) <= 10


def test_token_and_request_are_in_no_log(
    server: WebServer, identity: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token, request = token_for(identity, "pi-10"), csr(tmp_path, "pi-10")
    with caplog.at_level(logging.DEBUG):
        claim(server, identity, token[:-1] + ("A" if token[-1] != "A" else "B"), request)
        claim(server, identity, token, request)
        claim(server, identity, token, request)
        ask(server, identity, "GET", f"/join?t={token}")
        ask(server, identity, "POST", CLAIM_PATH, token.encode())
    told = "\n".join(f"{record.getMessage()} {record.exc_info}" for record in caplog.records)
    assert "'pi-10' claimed its certificate" in told
    assert "token-used" in told
    assert token.split(".")[0] not in told
    assert token.split(".")[1][:20] not in told


def test_certificate_comes_again_for_its_key_until_it_is_revoked(
    server: WebServer, identity: Path, tmp_path: Path
) -> None:
    import hashlib

    request = csr(tmp_path, "pi-11")
    first = claim(server, identity, token_for(identity, "pi-11"), request)
    with Authority(identity) as authority:
        key = authority.records.certificates("device", "pi-11")[0].public_key
    path = CERTIFICATE_PATH + hashlib.sha256(key).hexdigest()
    assert ask(server, identity, "GET", path).body == first.body
    assert ask(server, identity, "GET", CERTIFICATE_PATH + "0" * 64).status == 404
    with Authority(identity) as authority:
        authority.revoke("pi-11")
    gone = ask(server, identity, "GET", path)
    assert (gone.status, gone.error["code"]) == (404, "no-certificate")


def test_health_is_told_where_no_page_is_served(server: WebServer, identity: Path) -> None:
    reply = ask(server, identity, "GET", "/healthz")
    assert (reply.status, reply.body) == (200, b'{"status":"ok"}')


def test_other_paths_are_nobodys(server: WebServer, identity: Path) -> None:
    for path in ("/", "/v1/claim", "/ca.key", "/v1/../ca.key", "/v1/ca.pem/../ca.key", CERTIFICATE_PATH + "x"):
        assert ask(server, identity, "GET", path).status == 404
    assert ask(server, identity, "POST", "/v1/other", b"x").status == 404
    assert ask(server, identity, "DELETE", CLAIM_PATH).status == 501
    assert b"apportion enrol -" in ask(server, identity, "GET", "/join").body


def test_failure_of_the_authority_tells_a_stranger_nothing(
    identity: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with claim_server(identity, URL, ClaimHandler(tmp_path / "gone")) as server:
        answer = claim(server, identity, token_for(identity, "pi-12"), csr(tmp_path / "d", "pi-12"))
    assert (answer.status, answer.error["code"]) == (500, "authority-failed")
    assert str(tmp_path) not in answer.body.decode()
    assert str(tmp_path) in caplog.text


def test_claims_are_served_beside_blobs_at_one_address(identity: Path, service: ClaimHandler, tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    with BlobService(blobs, URL, *server_files(identity, "localhost"), claims=service) as both:
        server = both._server
        assert claim(server, identity, token_for(identity, "pi-13"), csr(tmp_path, "pi-13")).status == 200
        path = urlsplit(both.url_for("pi-13", 60)).path + blobs.put(b"weights")
        assert ask(server, identity, "GET", path).body == b"weights"
        assert ask(server, identity, "GET", "/v1/x/" + "a" * 64).status == 403


def test_taken_port_says_so(server: WebServer, identity: Path, service: ClaimHandler) -> None:
    with pytest.raises(BrokerUnreachable, match="claims cannot be served at") as error:
        claim_server(identity, server.address, service)
    assert "--listen" in error.value.hint


def test_claims_are_served_over_ipv6(tmp_path: Path, identity: Path, service: ClaimHandler) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with Authority(identity) as authority:
        authority.issue_server(["::1"])
        token = create_token(authority, "pi-14", 60)
        pin = root_fingerprint(authority.folder.ca.read_bytes())
    with claim_server(identity, "https://[::1]:0", service) as server:
        link = claim_link(server.address, token, pin, "pi-14")
        assert enrol(ClaimLink.from_text(link), tmp_path / "pi").is_new

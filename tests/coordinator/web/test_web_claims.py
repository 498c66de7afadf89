"""Claims at the page's address: both kinds, what is refused, and how much anybody may ask."""

from __future__ import annotations

import base64
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coordinator.fleet.claim_handler import ClaimHandler
from coordinator.fleet.rate_limit import RateLimit
from coordinator.identity.authority import Authority
from coordinator.identity.claims import create_token
from coordinator.web import claims
from coordinator.web.app import web_application
from coordinator.web.pages import Pages
from coordinator.web.server import WebServer
from coordinator.web.tickets import Tickets
from edge.contracts.claims import (
    MAX_CLAIM_BYTES,
    ClaimRefusal,
    ClaimReply,
    ClaimRequest,
    KeyClaimReply,
    KeyClaimRequest,
)
from edge.contracts.signing import claim_text
from edge.identity.device_identity import make_request
from tests.coordinator.web.served_page import SOCKET, ServedPage


def token(identity: Path, device: str) -> str:
    with Authority(identity) as authority:
        return create_token(authority, device, 600)


def key_claim(secret: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    public = base64.b64encode(key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()
    r, s = utils.decode_dss_signature(key.sign(claim_text(secret, public), ec.ECDSA(SHA256())))
    proof = base64.b64encode(r.to_bytes(32, "big") + s.to_bytes(32, "big")).decode()
    return KeyClaimRequest(secret, public, proof).to_bytes()


def refusal_code(body: bytes) -> str:
    return ClaimRefusal.from_bytes(body).error.code


def test_browser_gets_its_password_for_its_key(served: ServedPage, identity: Path) -> None:
    body = key_claim(token(identity, "phone-1"), ec.generate_private_key(ec.SECP256R1()))
    reply = served.ask("/v1/claim-key", "POST", body)
    assert reply.status == 200
    claimed = KeyClaimReply.from_bytes(reply.body)
    assert (claimed.device, claimed.user, claimed.federation, claimed.broker) == ("phone-1", "phone-1", "fed", SOCKET)
    assert len(claimed.password) >= 40
    assert reply.headers["Cache-Control"] == "no-store"
    assert reply.headers["Connection"] == "close"
    assert served.told[-1] == "phone-1"


def test_token_used_for_one_key_is_refused_to_another(served: ServedPage, identity: Path) -> None:
    secret = token(identity, "phone-2")
    first = served.ask("/v1/claim-key", "POST", key_claim(secret, ec.generate_private_key(ec.SECP256R1())))
    second = served.ask("/v1/claim-key", "POST", key_claim(secret, ec.generate_private_key(ec.SECP256R1())))
    assert (first.status, second.status, refusal_code(second.body)) == (200, 410, "token-used")
    assert served.told.count("phone-2") == 1


def test_machine_gets_its_certificate_at_the_same_address(served: ServedPage, identity: Path, tmp_path: Path) -> None:
    request = make_request(tmp_path / "pi", "pi-1").request.read_text()
    reply = served.ask("/v1/claim", "POST", ClaimRequest(token(identity, "pi-1"), request).to_bytes())
    assert (reply.status, ClaimReply.from_bytes(reply.body).device) == (200, "pi-1")
    assert served.ask("/v1/ca.pem").body == (identity / "ca.pem").read_bytes()
    assert served.ask("/v1/certificate/" + "0" * 64).status == 404


@pytest.mark.parametrize("body", [b"{}", b"\xff" * 100, b""])
def test_claim_that_is_none_is_refused(served: ServedPage, body: bytes) -> None:
    reply = served.ask("/v1/claim-key", "POST", body)
    assert (reply.status, refusal_code(reply.body)) == (400, "not-a-claim")
    assert "Content-Security-Policy" in reply.headers


def test_body_over_the_limit_or_of_no_length_is_not_read(served: ServedPage) -> None:
    large = served.ask("/v1/claim", "POST", b"x" * (MAX_CLAIM_BYTES + 1))
    assert (large.status, refusal_code(large.body)) == (413, "too-large")
    endless = served.ask("/v1/claim-key", "POST", b"2\r\n{}\r\n0\r\n\r\n", Transfer_Encoding="chunked")
    assert (endless.status, refusal_code(endless.body)) == (411, "no-length")


def test_body_that_does_not_come_is_given_up(served: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BODY_TIMEOUT_S", 0.2)
    parts = urlsplit(served.address)
    began = time.monotonic()
    with socket.create_connection((parts.hostname, parts.port), 10) as client:
        client.sendall(b"POST /v1/claim HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        got = b""
        while piece := client.recv(65_536):
            got += piece
    assert got.startswith(b"HTTP/1.1 408")
    assert b"too-slow" in got
    assert time.monotonic() - began < 5


@pytest.fixture
def hurried(built_page: Path, identity: Path) -> Iterator[ServedPage]:
    """A server that takes two claims and then one in a thousand seconds."""
    handler = ClaimHandler(identity, federation="fed", web_socket=SOCKET, limit=RateLimit((2, 0.001), (100, 1.0)))
    with WebServer("http://127.0.0.1:0", web_application(Pages(built_page), handler, web_socket=SOCKET)) as server:
        yield ServedPage(server.address, None, Tickets(), None, [])  # type: ignore[arg-type]


def test_whoever_claims_too_often_waits_and_still_has_the_page(hurried: ServedPage) -> None:
    statuses = [hurried.ask("/v1/claim-key", "POST", b"{}").status for _ in range(3)]
    assert statuses == [400, 400, 429]
    refused = hurried.ask("/v1/claim", "POST", b"{}")
    assert refusal_code(refused.body) == "too-many-claims"
    assert int(refused.headers["Retry-After"]) > 100
    assert hurried.ask("/").status == 200


def test_server_without_a_run_has_no_blobs(hurried: ServedPage) -> None:
    assert hurried.ask(Tickets().path_for("phone", 60) + "a" * 64).status == 404

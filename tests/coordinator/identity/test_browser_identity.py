"""Devices in browsers: what a token gives them, whose messages are used, and what is refused."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import logging
import sqlite3
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coordinator.brokers.access import access_rules
from coordinator.fleet.claim_handler import Answer, ClaimHandler
from coordinator.fleet.revocation import revoke_device, was_revoked
from coordinator.identity.authority import Authority
from coordinator.identity.browsers import browser_devices, browser_key, claim_key, is_signed, password_lines
from coordinator.identity.claims import TokenRefused, create_token, exchange_token
from edge.contracts.claims import KeyClaimReply, KeyClaimRequest
from edge.contracts.errors import IdentityRefused
from edge.contracts.signing import claim_text, message_text
from edge.identity.device_identity import make_request
from tests.coordinator.identity.browser_device import BrowserDevice

START = datetime.datetime(2026, 11, 20, 12, 0, tzinfo=datetime.UTC)


class Clock:
    """A clock that stands still until it is moved."""

    now = START

    def __call__(self) -> datetime.datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authority(tmp_path: Path, clock: Clock) -> Iterator[Authority]:
    with Authority.create(tmp_path / "identity", now=clock) as made:
        yield made


@pytest.fixture
def identity(authority: Authority) -> Path:
    return authority.folder.root


def csr(folder: Path, device: str) -> bytes:
    return make_request(folder, device).request.read_bytes()


def test_vectors_of_the_page_are_signed_by_their_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "wire-protocol.md").read_text()
    vectors = json.loads(page.split("```json vectors\n")[1].split("```")[0])["browser_signatures"]
    message, claim = vectors["message"], vectors["claim"]
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), base64.b64decode(vectors["public_key"])[-65:])
    federation, device, kind, message_id = (message[name] for name in ("federation", "device", "kind", "id"))
    text = message_text(federation, device, kind, message_id, bytes.fromhex(message["body"]))
    assert text.hex() == message["text"]
    assert is_signed(key, bytes.fromhex(message["signature"]), text)
    assert not is_signed(key, bytes.fromhex(message["signature"]), text + b"x")
    assert claim_text(claim["token"], vectors["public_key"]).hex() == claim["text"]
    assert is_signed(key, base64.b64decode(claim["proof"]), bytes.fromhex(claim["text"]))


def test_claim_gives_a_password_and_keeps_its_hash(authority: Authority) -> None:
    phone = BrowserDevice("phone-1")
    claimed = phone.claim(authority, create_token(authority, "phone-1", 600))
    assert (claimed.device, claimed.user) == ("phone-1", "phone-1")
    assert len(base64.urlsafe_b64decode(claimed.password + "=")) == 32
    assert claimed.signing_public == authority.folder.signing_public.read_bytes()
    (kept,) = browser_devices(authority)
    assert (kept.device, kept.public_key, kept.since) == ("phone-1", phone.spki, START.timestamp())
    assert password_lines(authority).startswith(b"phone-1:$7$101$")
    assert claimed.password not in repr(claimed) + repr(kept)
    assert claimed.password.encode() not in authority.folder.records.read_bytes()
    key = browser_key(authority, "phone-1")
    assert key is not None
    assert is_signed(key, phone.sign(b"text"), b"text")
    assert browser_key(authority, "phone-2") is None


def test_claim_repeated_by_its_key_replaces_the_password_until_the_token_expires(
    authority: Authority, clock: Clock
) -> None:
    phone, token = BrowserDevice("phone-1"), create_token(authority, "phone-1", 600)
    first, line = phone.claim(authority, token), password_lines(authority)
    clock.now = START + datetime.timedelta(seconds=599)
    second = phone.claim(authority, token)
    assert second.password != first.password
    assert password_lines(authority) != line
    assert len(browser_devices(authority)) == 1
    clock.now = START + datetime.timedelta(seconds=600)
    with pytest.raises(TokenRefused, match="expired"):
        phone.claim(authority, token)


def test_used_token_gives_nothing_to_another_key_nor_a_certificate(authority: Authority, tmp_path: Path) -> None:
    token = create_token(authority, "phone-1", 600)
    BrowserDevice("phone-1").claim(authority, token)
    before = password_lines(authority)
    with pytest.raises(TokenRefused) as thief:
        BrowserDevice("phone-1").claim(authority, token)
    with pytest.raises(TokenRefused) as other:
        exchange_token(authority, token, csr(tmp_path, "phone-1"))
    assert (thief.value.reason, other.value.reason) == ("token-used", "token-used")
    assert password_lines(authority) == before


@pytest.mark.parametrize("token", ["", "x", "0123456789abcdef." + "S" * 43, "é" * 60])
def test_wrong_token_is_refused_before_anything_else(authority: Authority, token: str) -> None:
    with pytest.raises(TokenRefused) as error:
        claim_key(authority, token, "not base64", "neither")
    assert error.value.reason == "no-such-token"


def rsa_key() -> str:
    key = rsa.generate_private_key(65537, 1024).public_key()
    return base64.b64encode(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()


def test_key_that_is_not_on_p256_or_not_proved_leaves_the_token_good(authority: Authority) -> None:
    phone, token = BrowserDevice("phone-1"), create_token(authority, "phone-1", 600)
    other, larger = BrowserDevice("phone-1"), BrowserDevice("phone-1", ec.SECP384R1())
    other_token = create_token(authority, "phone-2", 600)
    tries = [
        (phone.public_key, other.proof(token), "not a signature"),
        (phone.public_key, phone.proof(other_token), "not a signature"),
        (phone.public_key, base64.b64encode(bytes(64)).decode(), "not a signature"),
        (phone.public_key, base64.b64encode(phone.sign(b"x")[:-1]).decode(), "not a signature"),
        (larger.public_key, phone.proof(token), "secp384r1, one on P-256"),
        (rsa_key(), phone.proof(token), "RSAPublicKey, one on P-256"),
        (base64.b64encode(b"key").decode(), phone.proof(token), "3 bytes cannot be read"),
        ("%%%", phone.proof(token), "the public key is not base64"),
        ("A" * 404, phone.proof(token), "404 characters, at most 400"),
        (phone.public_key, "%%%", "the proof is not base64"),
    ]
    for key, proof, said in tries:
        with pytest.raises(IdentityRefused, match=said):
            claim_key(authority, token, key, proof)
    assert browser_devices(authority) == []
    assert phone.claim(authority, token).device == "phone-1"


def test_device_has_a_certificate_or_a_browsers_key(authority: Authority, tmp_path: Path) -> None:
    early = create_token(authority, "pi-1", 600)
    authority.sign_device(csr(tmp_path / "a", "pi-1"), "pi-1")
    with pytest.raises(IdentityRefused, match="'pi-1' has a certificate"):
        BrowserDevice("pi-1").claim(authority, early)
    BrowserDevice("phone-1").claim(authority, create_token(authority, "phone-1", 600))
    with pytest.raises(IdentityRefused, match="'phone-1' is in a browser that has its key"):
        create_token(authority, "phone-1", 600)
    with pytest.raises(IdentityRefused, match="'phone-1' is in a browser that has its key"):
        authority.sign_device(csr(tmp_path / "b", "phone-1"), "phone-1")
    authority.sign_device(csr(tmp_path / "b", "phone-1"), "phone-1", replace=True)
    assert password_lines(authority) == b""
    assert b"user phone-1\ntopic deny #" not in rules(authority)


def rules(authority: Authority) -> bytes:
    return access_rules(authority.records.certificates(), authority.now(), authority.records.browsers())


def test_revocation_ends_key_password_topics_and_token(authority: Authority, identity: Path) -> None:
    phone, token = BrowserDevice("phone-1"), create_token(authority, "phone-1", 600)
    phone.claim(authority, token)
    assert not was_revoked(identity, "phone-1")
    (serial,) = revoke_device(identity, "phone-1", reason="lost")
    assert serial == browser_devices(authority)[0].serial
    assert revoke_device(identity, "phone-1", reason="lost") == []
    assert was_revoked(identity, "phone-1")
    assert password_lines(authority) == b""
    assert b"user phone-1\ntopic deny #" in rules(authority)
    assert browser_key(authority, "phone-1") is None
    with pytest.raises(IdentityRefused, match="key of this claim was revoked"):
        phone.claim(authority, token)
    again = BrowserDevice("phone-1")
    again.claim(authority, create_token(authority, "phone-1", 600))
    assert b"user phone-1" not in rules(authority)
    with pytest.raises(IdentityRefused, match="key of this claim was revoked"):
        phone.claim(authority, create_token(authority, "phone-2", 600))


def test_record_of_the_release_before_is_brought_up_to_date(authority: Authority, identity: Path) -> None:
    token = create_token(authority, "phone-1", 600)
    with contextlib.closing(sqlite3.connect(authority.folder.records)) as connection:
        connection.executescript("DROP TABLE browsers; PRAGMA user_version = 1;")
    for _ in range(2):
        with Authority(identity, now=Clock()) as opened:
            phone = BrowserDevice("phone-1")
            if not browser_devices(opened):
                phone.claim(opened, token)
            assert [browser.device for browser in browser_devices(opened)] == ["phone-1"]


class Counter:
    """A claim handler, and what it did when a device had claimed."""

    def __init__(self, identity: Path, web_socket: str = "wss://broker.local:8084") -> None:
        self.told: list[tuple[str, bool]] = []
        self._identity = identity
        self.handler = ClaimHandler(identity, federation="fed", web_socket=web_socket, on_claimed=self._tell)

    def _tell(self, device: str) -> None:
        with Authority(self._identity) as authority:
            self.told.append((device, browser_key(authority, device) is not None))

    def claim(self, phone: BrowserDevice, token: str) -> Answer:
        return self.handler.claim_key(
            KeyClaimRequest(token, phone.public_key, phone.proof(token)).to_bytes(), "10.0.0.7"
        )


def code_of(answer: Answer) -> str:
    return str(json.loads(answer.body)["error"]["code"])


def test_desk_tells_the_broker_first_and_says_where_to_connect(
    identity: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    counter, phone = Counter(identity), BrowserDevice("phone-1")
    with Authority(identity) as authority:
        token = create_token(authority, "phone-1", 600)
    answer = counter.claim(phone, token)
    assert (answer.status, counter.told, counter.handler.claimed) == (HTTPStatus.OK, [("phone-1", True)], ["phone-1"])
    reply = KeyClaimReply.from_bytes(answer.body)
    assert (reply.broker, reply.federation, reply.user) == ("wss://broker.local:8084", "fed", "phone-1")
    refused = counter.claim(BrowserDevice("phone-1"), token)
    assert (refused.status, code_of(refused)) == (HTTPStatus.GONE, "token-used")
    assert token.split(".")[1] not in caplog.text + answer.body.decode() + refused.body.decode()
    assert reply.password not in caplog.text


def test_desk_refuses_what_is_no_claim_and_browsers_where_none_are_let_in(identity: Path) -> None:
    counter, phone = Counter(identity), BrowserDevice("phone-1")
    for body in (b"", b"{}", b"[" * 20_000, b'{"token": "secret", "public_key": 1, "proof": ""}', b"x" * 30_000):
        answer = counter.handler.claim_key(body, "10.0.0.7")
        assert (answer.status, code_of(answer)) == (HTTPStatus.BAD_REQUEST, "not-a-claim")
        assert b"secret" not in answer.body
    with Authority(identity) as authority:
        token = create_token(authority, "phone-1", 600)
    closed = Counter(identity, web_socket="")
    assert code_of(closed.claim(phone, token)) == "no-browsers"
    assert counter.claim(phone, token).status == HTTPStatus.OK
    answers = [counter.handler.claim_key(b"", "10.0.0.8") for _ in range(31)]
    assert (answers[-1].status, int(answers[-1].headers["Retry-After"]) > 0) == (HTTPStatus.TOO_MANY_REQUESTS, True)


def test_desk_gives_one_key_a_token_when_several_come_at_once(identity: Path) -> None:
    counter = Counter(identity)
    with Authority(identity) as authority:
        token = create_token(authority, "phone-1", 600)
    statuses: list[int] = []
    start = threading.Barrier(5)

    def race() -> None:
        phone = BrowserDevice("phone-1")
        start.wait(10)
        statuses.append(counter.claim(phone, token).status)

    threads = [threading.Thread(target=race) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(statuses) == [200, 410, 410, 410, 410]

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
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coordinator.fleet.claim_desk import Answer, ClaimDesk
from coordinator.fleet.revocation import revoke_device, was_revoked
from coordinator.identity.access import access_rules
from coordinator.identity.authority import Authority
from coordinator.identity.browsers import browser_devices, browser_key, claim_key, is_signed, password_lines
from coordinator.identity.claims import TokenRefused, create_token, exchange_token
from coordinator.identity.message_check import BrowserSignatures
from coordinator.ledger import Ledger
from edge.contracts import topics
from edge.contracts.claims import KeyClaimReply, KeyClaimRequest
from edge.contracts.envelope import seal, unseal
from edge.contracts.errors import IdentityRefused, MessageRejected, SignatureRejected
from edge.contracts.messages import Accept, Bye, Heartbeat, Refuse
from edge.contracts.signing import claim_text, message_text
from edge.device_identity import make_request
from tests.coordinator.identity.browser_device import BrowserDevice
from tests.coordinator.inbox_desk import FEDERATION, Desk, hello

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
    names = ("federation", "device", "kind", "id")
    text = message_text(*(message[name] for name in names), body=bytes.fromhex(message["body"]))
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


# the desk


class Counter:
    """A claim desk, and what it did when a device had claimed."""

    def __init__(self, identity: Path, web_socket: str = "wss://broker.local:8084") -> None:
        self.told: list[tuple[str, bool]] = []
        self._identity = identity
        self.desk = ClaimDesk(identity, federation="fed", web_socket=web_socket, on_claimed=self._tell)

    def _tell(self, device: str) -> None:
        with Authority(self._identity) as authority:
            self.told.append((device, browser_key(authority, device) is not None))

    def claim(self, phone: BrowserDevice, token: str) -> Answer:
        return self.desk.claim_key(KeyClaimRequest(token, phone.public_key, phone.proof(token)).to_bytes(), "10.0.0.7")


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
    assert (answer.status, counter.told, counter.desk.claimed) == (HTTPStatus.OK, [("phone-1", True)], ["phone-1"])
    reply = KeyClaimReply.from_bytes(answer.body)
    assert (reply.broker, reply.federation, reply.user) == ("wss://broker.local:8084", "fed", "phone-1")
    refused = counter.claim(BrowserDevice("phone-1"), token)
    assert (refused.status, code_of(refused)) == (HTTPStatus.GONE, "token-used")
    assert token.split(".")[1] not in caplog.text + answer.body.decode() + refused.body.decode()
    assert reply.password not in caplog.text


def test_desk_refuses_what_is_no_claim_and_browsers_where_none_are_let_in(identity: Path) -> None:
    counter, phone = Counter(identity), BrowserDevice("phone-1")
    for body in (b"", b"{}", b"[" * 20_000, b'{"token": "secret", "public_key": 1, "proof": ""}', b"x" * 30_000):
        answer = counter.desk.claim_key(body, "10.0.0.7")
        assert (answer.status, code_of(answer)) == (HTTPStatus.BAD_REQUEST, "not-a-claim")
        assert b"secret" not in answer.body
    with Authority(identity) as authority:
        token = create_token(authority, "phone-1", 600)
    closed = Counter(identity, web_socket="")
    assert code_of(closed.claim(phone, token)) == "no-browsers"
    assert counter.claim(phone, token).status == HTTPStatus.OK
    answers = [counter.desk.claim_key(b"", "10.0.0.8") for _ in range(31)]
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


# messages


@pytest.fixture
def desk(tmp_path: Path, identity: Path) -> Iterator[Desk]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation=FEDERATION, config="", seed=0) as ledger:
        desk = Desk(tmp_path, ledger, check=BrowserSignatures(identity, FEDERATION))
        yield desk
        desk.publisher.close()


def handed(desk: Desk, kind: str, payload: bytes, device: str = "pi-1") -> list[tuple[str, Any]]:
    desk.sent.clear()
    desk.said.clear()
    desk.inbox.handle(topics.up(FEDERATION, device, kind), payload)
    return [(kind, body) for _, kind, body in desk.sent]


def test_signed_messages_are_used_and_devices_without_such_a_key_are_as_before(desk: Desk, identity: Path) -> None:
    phone = BrowserDevice("pi-1")
    phone.enrol(identity)
    ((kind, _),) = handed(desk, "hello", phone.sealed("hello", hello("pi-1"), federation=FEDERATION))
    assert kind == "order"
    handed(desk, "accept", phone.sealed("accept", Accept(desk.id()), federation=FEDERATION))
    assert desk.state() == "accepted"
    assert handed(desk, "hello", seal("hello", hello("pi-2")), device="pi-2")[0][0] == "order"


def test_message_that_its_key_has_not_signed_settles_nothing(desk: Desk, identity: Path) -> None:
    phone, thief = BrowserDevice("pi-1"), BrowserDevice("pi-1")
    phone.enrol(identity)
    refuse = Refuse(assignment_id=desk.id(), code="no", reason="not today")
    good = unseal(phone.sealed("refuse", refuse, federation=FEDERATION))
    encode = msgspec.msgpack.encode
    changed = msgspec.structs.replace(
        good, body=msgspec.Raw(encode(Refuse(assignment_id=desk.id(), code="other", reason="")))
    )
    renamed = msgspec.structs.replace(good, id="m2")
    bad = {
        "not signed": seal("refuse", refuse),
        "another's key": thief.sealed("refuse", refuse, federation=FEDERATION),
        "another kind": phone.sealed("refuse", refuse, federation=FEDERATION, kind="accept"),
        "another federation": phone.sealed("refuse", refuse, federation=FEDERATION + "x"),
        "another device": phone.sealed("refuse", refuse, federation=FEDERATION, device="pi-2"),
        "changed body": encode(changed),
        "changed id": encode(renamed),
        "line feed in the id": encode(msgspec.structs.replace(good, id="m1\nx")),
        "id without end": encode(msgspec.structs.replace(good, id="m" * 2000)),
        "short signature": encode(msgspec.structs.replace(good, signature=good.signature[:63])),
        "signature of zeros": encode(msgspec.structs.replace(good, signature=bytes(64))),
        "order's signature": seal("refuse", refuse, message_id="m1", sign=lambda body: phone.sign(body)),
    }
    for what, payload in bad.items():
        ((kind, error),) = handed(desk, "refuse", payload)
        assert (kind, error.code) == ("error", "bad-signature"), what
        assert len(desk.said) == 1, what
        assert desk.state() == "open", what
    ((kind, ack),) = handed(desk, "refuse", encode(good))
    assert (kind, ack.code, desk.state()) == ("ack", "refused", "refused")


def test_bye_that_is_not_signed_ends_nobody(desk: Desk, identity: Path) -> None:
    phone = BrowserDevice("pi-1")
    phone.enrol(identity)
    handed(desk, "hello", phone.sealed("hello", hello("pi-1"), federation=FEDERATION))
    handed(desk, "bye", seal("bye", Bye("forged")))
    assert [one.device for one in desk.cohort.present()] == ["pi-1"]
    handed(desk, "bye", phone.sealed("bye", Bye("own"), federation=FEDERATION))
    assert desk.cohort.present() == []


def test_revoked_device_is_refused_from_its_next_message_on(desk: Desk, identity: Path) -> None:
    phone = BrowserDevice("pi-1")
    phone.enrol(identity)
    beat = phone.sealed("heartbeat", Heartbeat(state="idle"), federation=FEDERATION)
    assert [kind for kind, _ in handed(desk, "heartbeat", beat)] == ["hello"]
    revoke_device(identity, "pi-1", reason="lost")
    ((kind, error),) = handed(desk, "heartbeat", beat)
    assert (kind, error.code) == ("error", "bad-signature")
    assert "its key was revoked" in error.message
    successor = BrowserDevice("pi-1")
    successor.enrol(identity)
    assert handed(desk, "heartbeat", beat)[0][0] == "error"
    beat = successor.sealed("heartbeat", Heartbeat(state="idle"), federation=FEDERATION)
    assert handed(desk, "heartbeat", beat)[0][0] == "hello"


def test_record_that_cannot_be_read_lets_nothing_through(identity: Path) -> None:
    check = BrowserSignatures(identity, FEDERATION)
    phone = BrowserDevice("phone-1")
    phone.enrol(identity)
    envelope = unseal(phone.sealed("heartbeat", Heartbeat(state="idle"), federation=FEDERATION))
    check("phone-1", envelope)
    (identity / "identity.sqlite").rename(identity / "elsewhere")
    with pytest.raises(SignatureRejected, match="cannot read its identity"):
        check("phone-1", envelope)


def test_texts_with_a_line_feed_are_not_signed() -> None:
    with pytest.raises(MessageRejected, match="line feed"):
        message_text("fed", "phone-1", "hello", "m1\nhello", b"")

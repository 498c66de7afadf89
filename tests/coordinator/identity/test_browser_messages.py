"""Messages of devices in browsers: used when their own key has signed them, and worth nothing otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.fleet.revocation import revoke_device
from coordinator.identity.authority import Authority
from coordinator.identity.message_check import BrowserSignatures
from coordinator.ledger.ledger import Ledger
from edge.contracts import topics
from edge.contracts.envelope import seal, unseal
from edge.contracts.errors import MessageRejected, SignatureRejected
from edge.contracts.messages import Accept, Bye, Heartbeat, Refuse
from edge.contracts.signing import message_text
from tests.coordinator.identity.browser_device import BrowserDevice
from tests.coordinator.messaging.inbox_bench import FEDERATION, MessageLoop, hello


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    Authority.create(tmp_path / "identity").close()
    return tmp_path / "identity"


@pytest.fixture
def handler(tmp_path: Path, identity: Path) -> Iterator[MessageLoop]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation=FEDERATION, config="", seed=0) as ledger:
        handler = MessageLoop(tmp_path, ledger, check=BrowserSignatures(identity, FEDERATION))
        yield handler
        handler.publisher.close()


def handed(handler: MessageLoop, kind: str, payload: bytes, device: str = "pi-1") -> list[tuple[str, Any]]:
    handler.sent.clear()
    handler.said.clear()
    handler.inbox.handle(topics.up(FEDERATION, device, kind), payload)
    return [(kind, body) for _, kind, body in handler.sent]


def test_signed_messages_are_used_and_devices_without_such_a_key_are_as_before(
    handler: MessageLoop, identity: Path
) -> None:
    phone = BrowserDevice("pi-1")
    phone.enrol(identity)
    ((kind, _),) = handed(handler, "hello", phone.sealed("hello", hello("pi-1"), federation=FEDERATION))
    assert kind == "order"
    handed(handler, "accept", phone.sealed("accept", Accept(handler.id()), federation=FEDERATION))
    assert handler.state() == "accepted"
    assert handed(handler, "hello", seal("hello", hello("pi-2")), device="pi-2")[0][0] == "order"


def test_message_that_its_key_has_not_signed_settles_nothing(handler: MessageLoop, identity: Path) -> None:
    phone, thief = BrowserDevice("pi-1"), BrowserDevice("pi-1")
    phone.enrol(identity)
    refuse = Refuse(assignment_id=handler.id(), code="no", reason="not today")
    good = unseal(phone.sealed("refuse", refuse, federation=FEDERATION))
    encode = msgspec.msgpack.encode
    changed = msgspec.structs.replace(
        good, body=msgspec.Raw(encode(Refuse(assignment_id=handler.id(), code="other", reason="")))
    )
    renamed = msgspec.structs.replace(good, id="m2")
    bad = {
        "not signed": seal("refuse", refuse),
        "another's key": thief.sealed("refuse", refuse, federation=FEDERATION),
        "another kind": phone.sealed("refuse", refuse, federation=FEDERATION, signed_as={"kind": "accept"}),
        "another federation": phone.sealed("refuse", refuse, federation=FEDERATION + "x"),
        "another device": phone.sealed("refuse", refuse, federation=FEDERATION, signed_as={"device": "pi-2"}),
        "changed body": encode(changed),
        "changed id": encode(renamed),
        "line feed in the id": encode(msgspec.structs.replace(good, id="m1\nx")),
        "id without end": encode(msgspec.structs.replace(good, id="m" * 2000)),
        "short signature": encode(msgspec.structs.replace(good, signature=good.signature[:63])),
        "signature of zeros": encode(msgspec.structs.replace(good, signature=bytes(64))),
        "order's signature": seal("refuse", refuse, message_id="m1", sign=lambda body: phone.sign(body)),
    }
    for what, payload in bad.items():
        ((kind, error),) = handed(handler, "refuse", payload)
        assert (kind, error.code) == ("error", "bad-signature"), what
        assert len(handler.said) == 1, what
        assert handler.state() == "open", what
    ((kind, ack),) = handed(handler, "refuse", encode(good))
    assert (kind, ack.code, handler.state()) == ("ack", "refused", "refused")


def test_bye_that_is_not_signed_ends_nobody(handler: MessageLoop, identity: Path) -> None:
    phone = BrowserDevice("pi-1")
    phone.enrol(identity)
    handed(handler, "hello", phone.sealed("hello", hello("pi-1"), federation=FEDERATION))
    handed(handler, "bye", seal("bye", Bye("forged")))
    assert [one.device for one in handler.cohort.present()] == ["pi-1"]
    handed(handler, "bye", phone.sealed("bye", Bye("own"), federation=FEDERATION))
    assert handler.cohort.present() == []


def test_revoked_device_is_refused_from_its_next_message_on(handler: MessageLoop, identity: Path) -> None:
    phone = BrowserDevice("pi-1")
    phone.enrol(identity)
    beat = phone.sealed("heartbeat", Heartbeat(state="idle"), federation=FEDERATION)
    assert [kind for kind, _ in handed(handler, "heartbeat", beat)] == ["hello"]
    revoke_device(identity, "pi-1", reason="lost")
    ((kind, error),) = handed(handler, "heartbeat", beat)
    assert (kind, error.code) == ("error", "bad-signature")
    assert "its key was revoked" in error.message
    successor = BrowserDevice("pi-1")
    successor.enrol(identity)
    assert handed(handler, "heartbeat", beat)[0][0] == "error"
    beat = successor.sealed("heartbeat", Heartbeat(state="idle"), federation=FEDERATION)
    assert handed(handler, "heartbeat", beat)[0][0] == "hello"


def test_record_that_cannot_be_read_lets_nothing_through(identity: Path) -> None:
    check = BrowserSignatures(identity, FEDERATION)
    phone = BrowserDevice("phone-1")
    phone.enrol(identity)
    envelope = unseal(phone.sealed("heartbeat", Heartbeat(state="idle"), federation=FEDERATION))
    check("phone-1", envelope)
    (identity / "identity.sqlite").rename(identity / "elsewhere")
    for one in (check, BrowserSignatures(identity, FEDERATION)):
        with pytest.raises(SignatureRejected, match="cannot read its identity"):
            one("phone-1", envelope)


def test_texts_with_a_line_feed_are_not_signed() -> None:
    with pytest.raises(MessageRejected, match="line feed"):
        message_text("fed", "phone-1", "hello", "m1\nhello", b"")

"""The coordinator's handler for masks: what it takes, what it says again, and what it refuses without a trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from coordinator.privacy.masking_handler import MaskingHandler
from coordinator.privacy.masking_records import COORDINATOR, Decided
from edge.contracts.codec import encode_msgpack
from edge.contracts.envelope import seal, unseal
from edge.contracts.errors import MessageRejected
from edge.contracts.masking import KEY_BYTES, Keys, Reveal, Revealed, Shares
from edge.contracts.plan import assignment_id
from edge.masking.commitments import BOX_BYTES, DIGEST_BYTES, PAIR_BYTES, PARCEL_BYTES, digests_in, digests_of
from edge.masking.shares import SHARE_BYTES

NAMES = ("a", "b", "c")


class Told:
    """Stands where the publisher does: what was said, in order."""

    is_signed = True

    def __init__(self) -> None:
        self.messages: list[tuple[str, str, Any]] = []

    def say_signed(self, device: str, kind: str, body: msgspec.Struct) -> None:
        self.messages.append((device, kind, body))

    def ack(self, device: str, body: msgspec.Struct) -> None:
        self.messages.append((device, "ack", body))


class Site:
    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.told, self.news = ledger, Told(), 0
        self.handler = MaskingHandler("fed", ledger, self.told, self._count)  # type: ignore[arg-type]

    def _count(self) -> None:
        self.news += 1

    def hear(self, device: str, kind: str, body: msgspec.Struct) -> None:
        self.handler.handlers[kind](device, unseal(seal(kind, body)))

    def decide(self, kind: str, body: msgspec.Struct) -> None:
        self.ledger.masking.add(0, 0, COORDINATOR, kind, encode_msgpack(body))

    def rows(self, kind: str) -> set[str]:
        return set(self.ledger.masking.of_attempt(0, 0, kind))


RUN = "0123456789abcdef0123456789abcdef"


def own(device: str) -> str:
    return assignment_id("fed", 0, device, 0, RUN)


def keys_of(device: str) -> Keys:
    return Keys(own(device), device.encode() * 32, device.encode() * 32)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation="fed", config="", seed=0) as ledger:
        ledger.nonce = RUN
        ledger.blobs.add("w" * 64, 1)
        ledger.blobs.add("m" * 64, 1)
        ledger.rounds.plan(
            0,
            0,
            deadline_s=60.0,
            assignments=[
                Assignment(
                    assignment_id=own(device),
                    round=0,
                    attempt=0,
                    device=device,
                    level="full",
                    cut={},
                    artifact_digest="m" * 64,
                    weights_digest="w" * 64,
                    order=b"",
                )
                for device in NAMES
            ],
        )
        ledger.rounds.move(0, 0, "published")
        yield Site(ledger)


def test_first_keys_stay_and_repeated_ones_are_no_news(site: Site) -> None:
    site.hear("a", "keys", keys_of("a"))
    site.hear("a", "keys", Keys(own("a"), b"x" * 32, b"y" * 32))
    assert site.news == 1
    assert site.handler.said(0, 0, "keys", Keys)["a"] == keys_of("a")
    assert site.told.messages == []


def test_keys_again_after_the_decision_bring_the_roster_again(site: Site) -> None:
    for device in NAMES:
        site.hear(device, "keys", keys_of(device))
    site.decide("roster", Decided(NAMES, 2))
    site.hear("b", "keys", keys_of("b"))
    ((device, kind, roster),) = site.told.messages
    assert (device, kind, roster.threshold, roster.assignment_id) == ("b", "roster", 2, own("b"))
    assert [member.device for member in roster.members] == list(NAMES)


@pytest.mark.parametrize("key", [b"", b"x" * 31, b"x" * 33, bytes(32), b"\1" + bytes(31)])
def test_device_with_a_key_that_nobody_has_is_named_and_its_work_is_over(site: Site, key: bytes) -> None:
    for device, keys in (("a", Keys(own("a"), key, b"y" * 32)), ("b", Keys(own("b"), b"x" * 32, key))):
        site.hear(device, "keys", keys)
        told, kind, ack = site.told.messages[-1]
        assert (told, kind, ack.accepted, ack.code) == (device, "ack", False, "masking-lie")
        entry = site.ledger.assignments.find(own(device))
        assert entry is not None
        assert (entry.state, entry.code) == ("rejected", "masking-lie")
        assert "cannot be used" in entry.reason
    assert site.rows("keys") == set()
    assert site.ledger.masking.liars() == {"a", "b"}
    site.ledger.masking.drop(1)
    assert site.ledger.masking.liars() == {"a", "b"}


def test_keys_under_anothers_assignment_change_nothing(site: Site) -> None:
    site.hear("a", "keys", keys_of("b"))
    site.hear("a", "keys", Keys("unknown", b"x" * 32, b"y" * 32))
    assert site.rows("keys") == set()


def test_device_that_was_left_out_is_told_to_forget(site: Site) -> None:
    site.ledger.assignments.expire(own("c"))
    site.hear("c", "keys", keys_of("c"))
    ((device, kind, ack),) = site.told.messages
    assert (device, kind, ack.accepted, ack.code) == ("c", "ack", False, "stale-round")


@pytest.mark.parametrize("recipients", [("b",), ("b", "c", "d"), ("a", "b", "c")])
def test_shares_for_others_than_the_roster_are_refused(site: Site, recipients: tuple[str, ...]) -> None:
    for device in NAMES:
        site.hear(device, "keys", keys_of(device))
    site.decide("roster", Decided(NAMES, 2))
    with pytest.raises(MessageRejected, match="not the roster's others"):
        site.hear("a", "shares", Shares(own("a"), dict.fromkeys(recipients, b"box")))
    assert site.rows("shares") == set()


def test_shares_before_a_roster_are_not_kept(site: Site) -> None:
    site.hear("a", "shares", Shares(own("a"), {"b": b"box", "c": b"box"}))
    assert site.rows("shares") == set()


def test_mail_is_what_the_others_sealed_for_that_device(site: Site) -> None:
    for device in NAMES:
        site.hear(device, "keys", keys_of(device))
    site.decide("roster", Decided(NAMES, 2))
    for device in NAMES:
        boxes = {other: f"{device} to {other}".encode().ljust(PARCEL_BYTES) for other in NAMES if other != device}
        site.hear(device, "shares", Shares(own(device), boxes, bytes(PAIR_BYTES), bytes(DIGEST_BYTES)))
    site.decide("mail", Decided(NAMES, 2))
    site.handler.send_mail(0, 0)
    boxes = {device: body.sealed for device, _, body in site.told.messages}
    assert {sender: box.strip() for sender, box in boxes["b"].items()} == {"a": b"a to b", "c": b"c to b"}
    assert set(boxes) == set(NAMES)


def test_revealed_shares_are_exactly_those_asked_for_and_the_first_stay(site: Site) -> None:
    given = {name: name.encode() * (2 * SHARE_BYTES) for name in NAMES}
    for device in NAMES:
        site.hear(device, "keys", keys_of(device))
    site.decide("roster", Decided(NAMES, 2))
    for device in NAMES:
        parcel = bytes(KEY_BYTES + BOX_BYTES) + digests_of(given[device])
        shares = Shares(
            own(device), dict.fromkeys({*NAMES} - {device}, parcel), digests_in(parcel), bytes(DIGEST_BYTES)
        )
        site.hear(device, "shares", shares)
    site.decide("reveal", Reveal("", ("a", "b"), ("c",)))
    share = {name: value[:SHARE_BYTES] for name, value in given.items()}
    for wrong in (
        Revealed(own("a"), {"a": share["a"]}, {"c": share["c"]}),
        Revealed(own("a"), share, {"c": share["c"]}),
    ):
        with pytest.raises(MessageRejected, match="not those asked for"):
            site.hear("a", "revealed", wrong)
    assert site.rows("revealed") == set()
    right = Revealed(own("a"), {"a": share["a"], "b": share["b"]}, {"c": share["c"]})
    site.hear("a", "revealed", right)
    site.hear("a", "revealed", Revealed(own("a"), {"a": share["b"], "b": share["b"]}, {"c": share["c"]}))
    assert site.handler.said(0, 0, "revealed", Revealed) == {"a": right}
    site.hear("b", "revealed", Revealed(own("b"), {"a": share["b"], "b": share["b"]}, {"c": share["c"]}))
    assert site.rows("revealed") == {"a"}
    assert site.ledger.masking.of_attempt(0, 0, "lie")["b"] == b"it tells another share of 'a' than it was given"

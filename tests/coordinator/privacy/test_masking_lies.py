"""Members that lie about their masks, before a real ledger: the liar is named with its evidence, nobody else is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from coordinator.privacy.masking_records import Decided
from edge.contracts.errors import MessageRejected
from edge.contracts.masking import Checked, Complaint, Dispute, Mail, Opening, Proceed, Reveal, Roster, Shares
from edge.masking.commitments import BOX_BYTES, PARCEL_BYTES
from edge.masking.keys import new_private
from tests.coordinator.privacy.test_masking_desk import Site
from tests.edge.masking.masking_device import NAMES, THRESHOLD, Device

LIAR, VICTIM = "d3", "d0"


class Cohort:
    """Five maskers and the coordinator's handler, each message handed over by the test."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.site = Site(ledger)
        self.devices = {name: Device(folder / name, name) for name in NAMES}

    def exchange(self, spoil: bytes | None = None) -> None:
        """Keys, roster and shares; ``spoil`` takes the place of the end of what the liar gives the victim."""
        for device in self.devices.values():
            device.masker.tick(device.order, 10.0)
            self.site.hear(device.name, "keys", device.sent["keys"])
        self.site.decide("roster", Decided(NAMES, THRESHOLD))
        members = self.site.handler.members(0, 0)
        for device in self.devices.values():
            device.tell("roster", Roster(device.order.assignment_id, THRESHOLD, members))
            device.masker.tick(device.order, 20.0)
            shares = device.sent["shares"]
            if device.name == LIAR and spoil is not None:
                parcel = shares.sealed[VICTIM][: -len(spoil)] + spoil
                shares = msgspec.structs.replace(shares, sealed={**shares.sealed, VICTIM: parcel})
            self.site.hear(device.name, "shares", shares)
        self.site.decide("mail", Decided(NAMES, THRESHOLD))

    def mail(self, name: str) -> None:
        said = self.site.handler.said(0, 0, "shares", Shares)
        parcels = {sender: shares.sealed[name] for sender, shares in said.items() if sender != name}
        self.devices[name].tell("mail", Mail(self.devices[name].order.assignment_id, parcels))

    def lies(self) -> dict[str, str]:
        return {device: why.decode() for device, why in self.site.ledger.masking.of_attempt(0, 0, "lie").items()}

    def state(self, name: str) -> str:
        entry = self.site.ledger.assignments.find(self.devices[name].order.assignment_id)
        assert entry is not None
        return entry.state


@pytest.fixture
def cohort(tmp_path: Path) -> Iterator[Cohort]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation="fed", config="", seed=0) as ledger:
        ledger.nonce = ""
        ledger.blobs.add("w" * 64, 1)
        ledger.blobs.add("m" * 64, 1)
        made = Cohort(ledger, tmp_path)
        no = {"level": "full", "cut": {}, "artifact_digest": "m" * 64, "weights_digest": "w" * 64, "order": b""}
        ledger.rounds.plan(
            0,
            0,
            deadline_s=60.0,
            assignments=[
                Assignment(assignment_id=d.order.assignment_id, round=0, attempt=0, device=d.name, **no)
                for d in made.devices.values()
            ],
        )
        ledger.rounds.move(0, 0, "published")
        yield made


def complain(cohort: Cohort, device: str, sender: str) -> None:
    cohort.site.hear(device, "complaint", Complaint(cohort.devices[device].order.assignment_id, sender))


def open_shares(cohort: Cohort) -> None:
    """Whoever was told of a dispute opens what is complained of."""
    device, _, dispute = [told for told in cohort.site.told.messages if told[1] == "dispute"][-1]
    cohort.devices[device].tell("dispute", dispute)
    cohort.site.hear(device, "opening", cohort.devices[device].sent["opening"])


@pytest.mark.parametrize("spoil", [b"x" * 64, b"x" * (64 + 20), b"x"])
def test_member_that_gives_bad_shares_is_named_by_the_complaint_of_one(cohort: Cohort, spoil: bytes) -> None:
    cohort.exchange(spoil)
    with pytest.raises(MessageRejected, match="device d3"):
        cohort.mail(VICTIM)
    cohort.devices[VICTIM].masker.tick(cohort.devices[VICTIM].order, 40.0)
    cohort.site.hear(VICTIM, "complaint", cohort.devices[VICTIM].sent["complaint"])
    assert cohort.lies() == {}
    open_shares(cohort)
    assert set(cohort.lies()) == {LIAR}
    assert "shares for 'd0'" in cohort.lies()[LIAR]
    assert {name: cohort.state(name) for name in (LIAR, VICTIM)} == {LIAR: "rejected", VICTIM: "open"}


def test_shares_under_a_key_that_nobody_has_are_named_without_a_dispute(cohort: Cohort) -> None:
    cohort.exchange(bytes(PARCEL_BYTES))
    complain(cohort, VICTIM, LIAR)
    assert "cannot be used" in cohort.lies()[LIAR]
    assert cohort.site.rows("dispute") == set()


def test_member_that_complains_of_good_shares_is_the_liar(cohort: Cohort) -> None:
    cohort.exchange()
    complain(cohort, LIAR, VICTIM)
    open_shares(cohort)
    assert cohort.lies() == {LIAR: "it complains of 'd0', whose shares are in order"}


def test_member_that_opens_with_another_key_is_the_liar(cohort: Cohort) -> None:
    cohort.exchange(b"x" * 64)
    complain(cohort, VICTIM, LIAR)
    identity = cohort.devices[LIAR].order.assignment_id
    cohort.site.hear(LIAR, "opening", Opening(identity, "d1", new_private()))  # nobody asked for that
    cohort.site.hear("d2", "opening", Opening(cohort.devices["d2"].order.assignment_id, VICTIM, new_private()))
    assert cohort.lies() == {}
    cohort.site.hear(LIAR, "opening", Opening(identity, VICTIM, new_private()))
    assert cohort.lies() == {LIAR: "it opens its shares for 'd0' with another key than theirs"}


def test_good_shares_that_somebody_changed_on_the_way_accuse_nobody_where_nothing_is_signed(cohort: Cohort) -> None:
    cohort.exchange()
    cohort.site.told.is_signed = False
    complain(cohort, VICTIM, LIAR)
    open_shares(cohort)
    assert cohort.lies() == {}
    assert cohort.site.rows("left-out") == {VICTIM}


def test_one_dispute_holds_an_attempt_up_and_is_said_again_with_its_complaint(cohort: Cohort) -> None:
    cohort.exchange()
    for _ in range(2):
        complain(cohort, "d1", LIAR)
        complain(cohort, "d2", VICTIM)
    told = [(device, dispute.receiver) for device, kind, dispute in cohort.site.told.messages if kind == "dispute"]
    assert told == [(LIAR, "d1"), (LIAR, "d1")]


@pytest.mark.parametrize("said", ["checked", "shares", "complaint"])
def test_dispute_that_was_lost_is_told_again_whatever_the_accused_says(cohort: Cohort, said: str) -> None:
    """Whoever complained may be gone, and says nothing again."""
    cohort.exchange()
    complain(cohort, "d1", LIAR)
    cohort.site.told.messages.clear()
    identity = cohort.devices[LIAR].order.assignment_id
    repeated = {
        "checked": Checked(identity),
        "shares": cohort.devices[LIAR].sent["shares"],
        "complaint": Complaint(identity, "d2"),
    }
    cohort.site.hear(LIAR, said, repeated[said])
    (dispute,) = [told for told in cohort.site.told.messages if told[1] == "dispute"]
    assert (dispute[0], dispute[2]) == (LIAR, Dispute(identity, "d1"))
    cohort.site.hear("d2", "shares", cohort.devices["d2"].sent["shares"])
    assert [told[0] for told in cohort.site.told.messages if told[1] == "dispute"] == [LIAR]


def test_complaint_after_the_word_that_all_is_in_order_is_not_heard(cohort: Cohort) -> None:
    cohort.exchange()
    for name in NAMES:
        cohort.mail(name)
        cohort.devices[name].masker.tick(cohort.devices[name].order, 40.0)
        cohort.site.hear(name, "checked", cohort.devices[name].sent["checked"])
    with pytest.raises(MessageRejected, match="a complaint of 'd0' after all shares"):
        complain(cohort, LIAR, VICTIM)
    assert cohort.site.rows("dispute") == set()
    assert cohort.lies() == {}


def test_member_that_reveals_another_share_is_named_and_the_others_are_enough(cohort: Cohort) -> None:
    cohort.exchange()
    for name in NAMES:
        cohort.mail(name)
        cohort.devices[name].tell("proceed", Proceed(cohort.devices[name].order.assignment_id))
    cohort.site.decide("reveal", Reveal("", NAMES, ()))
    for device in cohort.devices.values():
        device.tell("reveal", Reveal(device.order.assignment_id, NAMES, ()))
        told = device.sent["revealed"]
        if device.name == LIAR:
            told = msgspec.structs.replace(told, self_masks={**told.self_masks, "d1": told.self_masks["d2"]})
        cohort.site.hear(device.name, "revealed", told)
    assert cohort.lies() == {LIAR: "it tells another share of 'd1' than it was given"}
    assert cohort.site.rows("revealed") == {*NAMES} - {LIAR}


def test_shares_of_a_wrong_size_name_their_giver(cohort: Cohort) -> None:
    for device in cohort.devices.values():
        device.masker.tick(device.order, 10.0)
        cohort.site.hear(device.name, "keys", device.sent["keys"])
    cohort.site.decide("roster", Decided(NAMES, THRESHOLD))
    parcels = dict.fromkeys({*NAMES} - {LIAR}, bytes(BOX_BYTES))
    cohort.site.hear(LIAR, "shares", Shares(cohort.devices[LIAR].order.assignment_id, parcels))
    assert "244 a member expected" in cohort.lies()[LIAR]


def test_helpers_are_chosen_once(cohort: Cohort) -> None:
    cohort.exchange()
    for name in NAMES:
        cohort.mail(name)
        cohort.devices[name].tell("proceed", Proceed(cohort.devices[name].order.assignment_id))
    cohort.site.decide("reveal", Reveal("", NAMES, ()))
    for name in NAMES[1:]:
        device = cohort.devices[name]
        device.tell("reveal", Reveal(device.order.assignment_id, NAMES, ()))
        cohort.site.hear(name, "revealed", device.sent["revealed"])
        if name == "d3":
            cohort.site.decide("helpers", Decided(("d1", "d2", "d3")))
    assert cohort.site.handler.helpers(0, 0) == ("d1", "d2", "d3")
    assert cohort.site.rows("revealed") == {"d1", "d2", "d3"}


def test_bad_keys_after_good_ones_change_nothing(cohort: Cohort) -> None:
    cohort.exchange()
    keys = cohort.devices["d1"].sent["keys"]
    cohort.site.hear("d1", "keys", msgspec.structs.replace(keys, masking=bytes(32)))
    assert cohort.lies() == {}


def test_shares_of_all_are_not_read_for_the_word_of_one(cohort: Cohort, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cohort of 800 they are 200 MB: a message that costs so much keeps everybody else waiting."""
    read: list[str] = []
    of_attempt = cohort.site.ledger.masking.of_attempt

    def counted(round_index: int, attempt: int, kind: str) -> dict[str, bytes]:
        read.append(kind)
        return of_attempt(round_index, attempt, kind)

    monkeypatch.setattr(cohort.site.ledger.masking, "of_attempt", counted)
    cohort.exchange()
    assert "shares" not in read
    for name in NAMES:
        cohort.mail(name)
        for _ in range(3):
            cohort.site.hear(name, "shares", cohort.devices[name].sent["shares"])
    mine = [kind for kind in read if kind == "shares"]
    assert len(mine) == 1 + len(NAMES)  # once by the handler; the others are the test's own, for the mail

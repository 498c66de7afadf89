"""What a device tells of single members: of one that complains of it, and of those that were found out in the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.contracts.errors import MessageRejected
from edge.contracts.masking import Dispute, Exclude, Mail, Member, Proceed, Reveal, Roster
from edge.masking.commitments import key_of, unpacked
from edge.masking.keys import public_of, share_purpose
from edge.masking.shares import SHARE_BYTES
from tests.edge.masking.masking_device import NAMES, THRESHOLD, Device
from tests.edge.masking.test_masking import agree_on_masks, exchange_keys


@pytest.fixture
def devices(tmp_path: Path) -> dict[str, Device]:
    return {name: Device(tmp_path / name, name) for name in NAMES}


def exchange_shares(devices: dict[str, Device]) -> tuple[Member, ...]:
    members = exchange_keys(devices)
    for device in devices.values():
        device.tell("roster", Roster(device.order.assignment_id, THRESHOLD, members))
        device.masker.tick(device.order, 20.0)
    return members


def test_opening_gives_one_parcel_away_and_the_device_masks_nothing_after_it(devices: dict[str, Device]) -> None:
    members = exchange_shares(devices)
    accused = devices["d3"]
    identity = accused.order.assignment_id
    parcels = accused.sent["shares"].sealed
    for masker in (accused.masker, accused.started()):  # the same again, and as after a kill
        accused.masker = masker
        accused.tell("dispute", Dispute(identity, "d0"))
        opening = accused.sent.pop("opening")
        assert (opening.receiver, public_of(opening.key)) == ("d0", key_of(parcels["d0"]))
    purpose = share_purpose(identity, devices["d0"].order.assignment_id)
    assert len(unpacked(opening.key, members[0].sharing, purpose, parcels["d0"], where="d3")) == 2 * SHARE_BYTES
    for member in members[1:3]:
        purpose = share_purpose(identity, devices[member.device].order.assignment_id)
        with pytest.raises(MessageRejected, match="cannot be opened"):
            unpacked(opening.key, member.sharing, purpose, parcels[member.device], where="d3")
    with pytest.raises(MessageRejected, match="opened for another device before"):
        accused.tell("dispute", Dispute(identity, "d1"))
    boxes = {name: device.sent["shares"].sealed["d3"] for name, device in devices.items() if name != "d3"}
    accused.tell("mail", Mail(identity, boxes))
    with pytest.raises(MessageRejected, match="masks are not agreed on here"):
        accused.tell("proceed", Proceed(identity))
    assert not accused.masker.is_ready(accused.order)
    accused.sent.clear()
    accused.masker.tick(accused.order, 40.0)
    assert accused.sent == {"opening": opening}  # which may have been lost


def test_nothing_is_opened_once_updates_may_be_masked_or_for_strangers(devices: dict[str, Device]) -> None:
    exchange_shares(devices)
    with pytest.raises(MessageRejected, match="'stranger' has no shares from here"):
        devices["d3"].tell("dispute", Dispute(devices["d3"].order.assignment_id, "stranger"))
    agree_on_masks(devices)
    with pytest.raises(MessageRejected, match="'d0' has no shares from here"):
        devices["d3"].tell("dispute", Dispute(devices["d3"].order.assignment_id, "d0"))
    assert "opening" not in devices["d3"].sent
    assert devices["d3"].masker.is_ready(devices["d3"].order)


def test_masks_wait_until_nobody_can_complain_any_more(devices: dict[str, Device]) -> None:
    exchange_shares(devices)
    device = devices["d0"]
    parcels = {n: d.sent["shares"].sealed["d0"] for n, d in devices.items() if n != "d0"}
    device.tell("mail", Mail(device.order.assignment_id, parcels))
    for masker in (device.masker, device.started()):
        masker.tick(device.order, 50.0)
        assert device.sent.pop("checked").assignment_id == device.order.assignment_id
        assert not masker.is_ready(device.order)


@pytest.fixture
def unmasked(devices: dict[str, Device]) -> dict[str, Device]:
    """Everybody told what takes the masks off the sum of all but d4; both sides sign."""
    for device in devices.values():
        device.signs()
    agree_on_masks(devices)
    for name in NAMES[:4]:
        devices[name].tell("reveal", Reveal(devices[name].order.assignment_id, NAMES[:4], ("d4",)))
    return devices


def test_seeds_of_the_masks_with_those_devices_and_no_others_are_told_once(unmasked: dict[str, Device]) -> None:
    device = unmasked["d0"]
    identity = device.order.assignment_id
    seeds = device.masker.seeds(device.order)
    assert seeds is not None
    for masker in (device.masker, device.started()):
        device.masker = masker
        device.signs()
        device.tell("exclude", Exclude(identity, ("d4",)))
        told = device.sent.pop("excluded")
        assert told.seeds == {"d4": seeds.added[-1]}
    with pytest.raises(MessageRejected, match="told before; once for an assignment"):
        device.tell("exclude", Exclude(identity, ("d3",)))
    assert "excluded" not in device.sent
    assert device.masker._known(identity).masking_key == b""


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ((), "masks with 0 devices"),
        (("d0",), "not others of the sum"),
        (("d1", "stranger"), "not others of the sum"),
        (("d1", "d2"), "2 devices would be left in a sum, fewer than 3"),
    ],
)
def test_what_would_tell_more_is_refused(unmasked: dict[str, Device], named: tuple[str, ...], said: str) -> None:
    with pytest.raises(MessageRejected, match=said):
        unmasked["d0"].tell("exclude", Exclude(unmasked["d0"].order.assignment_id, named))
    assert "excluded" not in unmasked["d0"].sent


def test_nothing_is_told_before_the_sum_is_unmasked(devices: dict[str, Device]) -> None:
    devices["d0"].signs()
    agree_on_masks(devices)
    with pytest.raises(MessageRejected, match="before the sum is unmasked"):
        devices["d0"].tell("exclude", Exclude(devices["d0"].order.assignment_id, ("d4",)))


def test_nothing_is_told_where_somebody_between_could_have_an_honest_member_found_out(
    devices: dict[str, Device],
) -> None:
    agree_on_masks(devices)
    devices["d0"].tell("reveal", Reveal(devices["d0"].order.assignment_id, NAMES, ()))
    with pytest.raises(MessageRejected, match="where both sides sign, nowhere else"):
        devices["d0"].tell("exclude", Exclude(devices["d0"].order.assignment_id, ("d4",)))

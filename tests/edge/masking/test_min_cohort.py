"""The smallest cohort that an owner allows: a smaller one gets no shares, no masks and no answer that undoes masks."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.contracts.errors import MessageRejected
from edge.contracts.masking import Mail, Member, Proceed, Reveal, Roster
from edge.supervisor.masked_round import Masker
from tests.edge.masking.masking_device import NAMES, THRESHOLD, Device

NOW = 100.0


def devices_of(tmp_path: Path, min_cohort: int) -> dict[str, Device]:
    """Devices that have given their keys; the first one's owner asks for ``min_cohort``."""
    made = {name: Device(tmp_path / name, name) for name in NAMES}
    first = made[NAMES[0]]

    def send(kind: str, body: object, *_: object) -> None:
        first.sent[kind] = body

    first.masker = Masker(first.folder, send, min_cohort=min_cohort)
    for device in made.values():
        device.masker.tick(device.order, NOW)
    return made


def roster(devices: dict[str, Device], to: Device) -> Roster:
    keys = {name: device.sent["keys"] for name, device in devices.items()}
    members = tuple(Member(name, keys[name].sharing, keys[name].masking) for name in NAMES)
    return Roster(to.order.assignment_id, THRESHOLD, members)


def mail(devices: dict[str, Device], to: Device, senders: tuple[str, ...]) -> Mail:
    sealed = {name: devices[name].sent["shares"].sealed[to.name] for name in senders if name != to.name}
    return Mail(to.order.assignment_id, sealed)


def test_roster_that_is_too_small_is_refused_with_the_rule(tmp_path: Path) -> None:
    devices = devices_of(tmp_path, 6)
    first = devices["d0"]
    with pytest.raises(MessageRejected, match=r"min-cohort: 6, the masked sum is of 5 devices"):
        first.tell("roster", roster(devices, first))
    first.masker.tick(first.order, NOW + 1000)
    assert "shares" not in first.sent
    refusal = first.sent["refuse"]
    assert (refusal.assignment_id, refusal.code) == (first.order.assignment_id, "policy")
    assert refusal.reason == "$.privacy.min-cohort: 6, the masked sum is of 5 devices"


def test_mail_and_reveal_of_fewer_than_the_roster_are_refused_too(tmp_path: Path) -> None:
    devices = devices_of(tmp_path, 5)
    for device in devices.values():
        device.tell("roster", roster(devices, device))
        device.masker.tick(device.order, NOW + 1000)
    first = devices["d0"]
    with pytest.raises(MessageRejected, match="min-cohort: 5, the masked sum is of 4 devices"):
        first.tell("mail", mail(devices, first, NAMES[:4]))
    assert first.sent["refuse"].code == "policy"
    assert not first.masker.is_ready(first.order)
    first.tell("mail", mail(devices, first, NAMES))
    first.tell("proceed", Proceed(first.order.assignment_id))
    assert first.masker.is_ready(first.order)
    with pytest.raises(MessageRejected, match="min-cohort: 5, the masked sum is of 4 devices"):
        first.tell("reveal", Reveal(first.order.assignment_id, NAMES[:4], NAMES[4:]))
    assert "revealed" not in first.sent
    first.tell("reveal", Reveal(first.order.assignment_id, NAMES, ()))
    assert set(first.sent["revealed"].self_masks) == set(NAMES)

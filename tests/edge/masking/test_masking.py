"""A device's side of masking, several devices and a coordinator's part of it in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edge.contracts.errors import DeviceRefused, MessageRejected
from edge.contracts.masking import (
    WEIGHT,
    Keys,
    Mail,
    Member,
    Proceed,
    Reveal,
    Revealed,
    Roster,
    Shares,
)
from edge.contracts.plan import assignment_id
from edge.masking.keys import (
    agree,
    check_public,
    keystream,
    new_private,
    opened,
    pair_purpose,
    public_of,
    sealed,
)
from edge.masking.numbers import add_masks, masked_update, signed
from edge.masking.seeds import MaskSeeds
from edge.masking.shares import recover
from edge.supervisor.assignment import Assignment
from tests.edge.masking.masking_device import MASKING, NAMES, THRESHOLD, Device, order_of


@pytest.fixture
def devices(tmp_path: Path) -> dict[str, Device]:
    return {name: Device(tmp_path / name, name) for name in NAMES}


def exchange_keys(devices: dict[str, Device], now: float = 10.0) -> tuple[Member, ...]:
    for device in devices.values():
        device.masker.tick(device.order, now)
    return tuple(Member(n, d.sent["keys"].sharing, d.sent["keys"].masking) for n, d in sorted(devices.items()))


def agree_on_masks(devices: dict[str, Device], mailed: tuple[str, ...] = NAMES) -> tuple[Member, ...]:
    members = exchange_keys(devices)
    for device in devices.values():
        device.tell("roster", Roster(device.order.assignment_id, THRESHOLD, members))
        device.masker.tick(device.order, 20.0)
    for name in mailed:
        boxes = {sender: devices[sender].sent["shares"].sealed[name] for sender in mailed if sender != name}
        devices[name].tell("mail", Mail(devices[name].order.assignment_id, boxes))
        devices[name].tell("proceed", Proceed(devices[name].order.assignment_id))
    return members


def vectors() -> dict[str, dict[str, np.ndarray]]:
    generator = np.random.default_rng(1)
    return {name: {"w": generator.normal(size=(7, 3)).astype(np.float32)} for name in NAMES}


SENT = {"w": np.full((7, 3), 0.25, np.float32)}


def update_of(device: Device, values: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    seeds = device.masker.seeds(device.order)
    assert seeds is not None
    return masked_update(["w"], values.__getitem__, SENT, MASKING, seeds, num_examples=count)


def test_masks_of_all_cancel_in_the_sum_to_the_bit(devices: dict[str, Device]) -> None:
    agree_on_masks(devices)
    total = np.zeros(1000, np.uint32)
    own = []
    for device in devices.values():
        seeds = device.masker.seeds(device.order)
        assert seeds is not None
        assert len(seeds.added) + len(seeds.removed) == len(NAMES)
        own.append(seeds.added[0])
        add_masks(total, "w", seeds.added, sign=1)
        add_masks(total, "w", seeds.removed, sign=-1)
    assert total.any()
    add_masks(total, "w", own, sign=-1)
    assert not total.any()


@pytest.mark.parametrize("gone", [(), ("d1",), ("d0", "d4")])
def test_sum_of_the_survivors_comes_out_exactly_whoever_else_vanished(
    devices: dict[str, Device], gone: tuple[str, ...]
) -> None:
    members = agree_on_masks(devices)
    reported = tuple(name for name in NAMES if name not in gone)
    counts = {name: 10 * (i + 1) for i, name in enumerate(NAMES)}
    values = vectors()
    updates = {name: update_of(devices[name], values[name], counts[name]) for name in reported}
    told: dict[int, Revealed] = {}
    for index, name in enumerate(NAMES, start=1):
        if name in reported[-THRESHOLD:]:
            devices[name].tell("reveal", Reveal(devices[name].order.assignment_id, reported, gone))
            told[index] = devices[name].sent["revealed"]
    public = {member.device: member.masking for member in members}
    for key, expected in (
        ("w", sum(np.rint((values[n]["w"].astype(float) - SENT["w"]) * counts[n] / MASKING.step) for n in reported)),
        (WEIGHT, [sum(counts[n] for n in reported)]),
    ):
        total = np.zeros_like(updates[reported[0]][key]).view(np.uint32)
        for update in updates.values():
            total += update[key].view(np.uint32)
        for name in reported:
            secret = recover({x: t.self_masks[name] for x, t in told.items()}, THRESHOLD)
            add_masks(total, key, [secret], sign=-1)
        for name in gone:
            private = recover({x: t.masking_keys[name] for x, t in told.items()}, THRESHOLD)
            assert public_of(private) == public[name]
            for other in reported:
                identities = (order_of(name).assignment_id, order_of(other).assignment_id)
                seed = agree(private, public[other], pair_purpose(*identities))
                add_masks(total, key, [seed], sign=-1 if other < name else 1)
        assert np.array_equal(signed(total), expected)


def test_killed_agent_has_the_same_keys_shares_masks_and_answer(devices: dict[str, Device]) -> None:
    device = devices["d2"]
    exchange_keys(devices)
    keys = device.sent["keys"]
    device.masker = device.started()
    device.masker.tick(device.order, 11.0)
    assert device.sent["keys"] == keys
    agree_on_masks(devices)
    shares, seeds = device.sent["shares"], device.masker.seeds(device.order)
    device.masker = device.started()
    assert not device.masker.is_ready(device.order)
    device.masker.tick(device.order, 30.0)
    assert device.masker.is_ready(device.order)
    assert device.masker.seeds(device.order) == seeds
    reveal = Reveal(device.order.assignment_id, NAMES, ())
    device.tell("reveal", reveal)
    answer = device.sent["revealed"]
    device.masker = device.started()
    device.tell("reveal", reveal)
    assert device.sent["revealed"] == answer
    assert set(shares.sealed) == set(NAMES) - {"d2"}


def test_secrets_are_gone_once_they_were_answered_for_and_files_are_the_owners_alone(
    devices: dict[str, Device],
) -> None:
    device = devices["d0"]
    agree_on_masks(devices)
    seeds = device.masker.seeds(device.order)
    assert seeds is not None
    (path,) = device.folder.iterdir()
    assert path.stat().st_mode & 0o077 == 0
    assert seeds.added[0] in path.read_bytes()
    device.tell("reveal", Reveal(device.order.assignment_id, NAMES, ()))
    assert seeds.added[0] not in path.read_bytes()


def test_both_secrets_of_a_device_are_never_told(devices: dict[str, Device]) -> None:
    agree_on_masks(devices)
    device = devices["d0"]
    identity = device.order.assignment_id
    with pytest.raises(MessageRejected, match="both secrets of 'd1'"):
        device.tell("reveal", Reveal(identity, NAMES, ("d1",)))
    assert "revealed" not in device.sent
    device.tell("reveal", Reveal(identity, NAMES, ()))
    first = device.sent.pop("revealed")
    with pytest.raises(MessageRejected, match="another list of devices than the first"):
        device.tell("reveal", Reveal(identity, ("d0", "d2", "d3", "d4"), ("d1",)))
    assert "revealed" not in device.sent
    assert "d1" not in first.masking_keys


@pytest.mark.parametrize(
    ("reported", "dropped", "said"),
    [
        (("d0", "d1"), ("d2", "d3", "d4"), "2 devices reported, a sum of fewer than 3"),
        (("d0", "d1", "d2"), ("d3",), "4 devices are named"),
        ((*NAMES, "stranger"), (), "6 devices are named"),
    ],
)
def test_reveal_that_is_not_of_this_cohort_is_refused(
    devices: dict[str, Device], reported: tuple[str, ...], dropped: tuple[str, ...], said: str
) -> None:
    agree_on_masks(devices)
    with pytest.raises(MessageRejected, match=said):
        devices["d0"].tell("reveal", Reveal(devices["d0"].order.assignment_id, reported, dropped))
    assert "revealed" not in devices["d0"].sent


@pytest.mark.parametrize("place", [0, 32, 179, 180, 243])
def test_changed_parcel_is_complained_of_no_key_is_given_away_and_nothing_follows(
    devices: dict[str, Device], place: int
) -> None:
    members = exchange_keys(devices)
    for device in devices.values():
        device.tell("roster", Roster(device.order.assignment_id, THRESHOLD, members))
        device.masker.tick(device.order, 20.0)
    target = devices["d0"]
    parcels = {n: d.sent["shares"].sealed["d0"] for n, d in devices.items() if n != "d0"}
    changed = bytearray(parcels["d3"])
    changed[place] ^= 1
    with pytest.raises(MessageRejected, match=r"device d3: its (sealed )?share"):
        target.tell("mail", Mail(target.order.assignment_id, {**parcels, "d3": bytes(changed)}))
    for masker in (target.masker, target.started()):  # as before it was killed
        masker.tick(target.order, 40.0)
        complaint = target.sent.pop("complaint")
        assert (complaint.sender, complaint.sharing_key) == ("d3", b"")
    target.tell("mail", Mail(target.order.assignment_id, parcels))
    with pytest.raises(MessageRejected, match="masks are not agreed on here"):
        target.tell("proceed", Proceed(target.order.assignment_id))
    assert not target.masker.is_ready(target.order)


def test_other_mail_than_the_first_is_refused(devices: dict[str, Device]) -> None:
    agree_on_masks(devices)
    parcels = {n: d.sent["shares"].sealed["d0"] for n, d in devices.items() if n in ("d1", "d2")}
    with pytest.raises(MessageRejected, match="other mail than the first"):
        devices["d0"].tell("mail", Mail(devices["d0"].order.assignment_id, parcels))


def test_masks_are_taken_off_once_for_a_model(devices: dict[str, Device]) -> None:
    agree_on_masks(devices)
    for device in devices.values():
        device.tell("reveal", Reveal(device.order.assignment_id, NAMES, ()))
    first = devices["d0"].sent.pop("revealed")
    again = devices["d0"]
    again.order = msgspec.structs.replace(again.order, assignment_id=assignment_id("fed", 0, "d0", 1), attempt=1)
    refusal = again.masker.refusal(Assignment.taken(again.order))
    assert refusal is not None
    assert (refusal.code, refusal.assignment_id) == ("masks-told", again.order.assignment_id)
    assert again.started().refusal(Assignment.taken(again.order)) == refusal
    others = msgspec.structs.replace(again.order, weights=msgspec.structs.replace(again.order.weights, digest="0" * 64))
    assert again.masker.refusal(Assignment.taken(others)) is None
    for device in devices.values():  # even where it was taken all the same
        device.order = msgspec.structs.replace(
            device.order, assignment_id=assignment_id("fed", 0, device.name, 1), attempt=1
        )
    agree_on_masks(devices)
    with pytest.raises(MessageRejected, match="masks were taken off a sum for the weights"):
        again.tell("reveal", Reveal(again.order.assignment_id, NAMES[:4], ("d4",)))
    assert "revealed" not in again.sent
    assert first.self_masks


def test_agent_that_was_killed_before_its_answer_gives_it(devices: dict[str, Device]) -> None:
    agree_on_masks(devices)
    device = devices["d0"]
    state = (device.folder / device.order.assignment_id).read_bytes()
    device.tell("reveal", Reveal(device.order.assignment_id, NAMES, ()))
    answer = device.sent.pop("revealed")
    (device.folder / device.order.assignment_id).write_bytes(state)  # the answer was not on disk, only that it comes
    device.masker = device.started()
    device.tell("reveal", Reveal(device.order.assignment_id, NAMES, ()))
    assert device.sent["revealed"] == answer


def test_other_order_under_the_same_id_has_keys_of_its_own(devices: dict[str, Device]) -> None:
    device = devices["d0"]
    device.masker.tick(device.order, 10.0)
    before = device.sent["keys"]
    device.masker = device.started()
    device.masker.tick(msgspec.structs.replace(device.order, data_seed=device.order.data_seed - 1), 20.0)
    assert device.sent["keys"].assignment_id == before.assignment_id
    assert {device.sent["keys"].sharing, device.sent["keys"].masking}.isdisjoint({before.sharing, before.masking})


LOW_ORDER = (bytes(32), b"\1" + bytes(31), bytes.fromhex("ecff" + "ff" * 29 + "7f"))


@pytest.mark.parametrize("key", [*LOW_ORDER, b"", b"x" * 31])
def test_key_that_nobody_has_gets_no_shares(devices: dict[str, Device], key: bytes) -> None:
    with pytest.raises(MessageRejected, match="cannot be used"):
        check_public(key, where="key")
    members = exchange_keys(devices)
    for bad in (Member("d1", key, members[1].masking), Member("d1", members[1].sharing, key)):
        with pytest.raises(MessageRejected, match="device d1: a public key"):
            devices["d0"].tell("roster", Roster(devices["d0"].order.assignment_id, 3, (members[0], bad, *members[2:])))
    devices["d0"].masker.tick(devices["d0"].order, 40.0)
    assert "shares" not in devices["d0"].sent


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: msgspec.structs.replace(r, threshold=2), "2 of 5 devices would undo a mask"),
        (lambda r: msgspec.structs.replace(r, threshold=6), "6 of 5 devices"),
        (lambda r: msgspec.structs.replace(r, members=r.members[1:]), "without this device's own keys"),
        (lambda r: msgspec.structs.replace(r, members=r.members[::-1]), "not each named once, in order"),
        (lambda r: msgspec.structs.replace(r, members=(*r.members, r.members[-1])), "not each named once"),
    ],
)
def test_roster_that_would_weaken_the_masks_is_refused(devices: dict[str, Device], change: Any, said: str) -> None:
    members = exchange_keys(devices)
    device = devices["d0"]
    with pytest.raises(MessageRejected, match=said):
        device.tell("roster", change(Roster(device.order.assignment_id, THRESHOLD, members)))
    device.masker.tick(device.order, 40.0)
    assert "shares" not in device.sent


def test_second_roster_gets_no_shares(devices: dict[str, Device]) -> None:
    members = exchange_keys(devices)
    device = devices["d0"]
    identity = device.order.assignment_id
    device.tell("roster", Roster(identity, THRESHOLD, members))
    device.tell("roster", Roster(identity, THRESHOLD, members))
    with pytest.raises(MessageRejected, match="another roster than the first"):
        device.tell("roster", Roster(identity, THRESHOLD, members[:4]))


def test_next_order_forgets_the_masks_of_the_one_before(devices: dict[str, Device]) -> None:
    agree_on_masks(devices)
    device = devices["d0"]
    later = msgspec.structs.replace(device.order, assignment_id=assignment_id("fed", 1, "d0", 0), round=1)
    device.masker.tick(later, 50.0)
    assert [path.name for path in device.folder.iterdir()] == [later.assignment_id]
    with pytest.raises(MessageRejected, match="has no masks here"):
        device.tell("reveal", Reveal(device.order.assignment_id, NAMES, ()))


def test_order_without_masks_needs_none(tmp_path: Path) -> None:
    device = Device(tmp_path / "a", "a")
    plain = msgspec.structs.replace(device.order, masking=None)
    device.masker.tick(plain, 1.0)
    assert device.sent == {}
    assert device.masker.is_ready(plain)
    assert device.masker.seeds(plain) is None


def test_keystream_is_chacha20s(tmp_path: Path) -> None:
    """RFC 8439 gives the block function for a key of zeros, nonce of zeros and counter 0 (appendix A.1, vector 1)."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    stream = Cipher(algorithms.ChaCha20(bytes(32), bytes(16)), mode=None).encryptor().update(bytes(16))
    assert stream.hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    pieces, whole = keystream(bytes(32), "w"), keystream(bytes(32), "w")(64)
    assert pieces(10) + pieces(54) == whole
    assert keystream(bytes(32), "v")(64) != whole


def test_tensor_of_many_pieces_is_masked_as_one() -> None:
    """Against the formula on the whole array: rounding, then one keystream over all of it."""
    count = (1 << 16) + 5
    values = np.random.default_rng(0).normal(size=(count, 1)).astype(np.float32)
    seed = bytes(range(32))
    sent = {"w": np.zeros_like(values)}
    found = masked_update(["w"], {"w": values}.__getitem__, sent, MASKING, MaskSeeds((seed,), ()), num_examples=3)
    whole = np.rint(values.astype(np.float64) * (3 / MASKING.step)).astype(np.int64).astype(np.uint32).reshape(-1)
    mask = np.frombuffer(keystream(seed, "w")(4 * count), "<u4")
    assert np.array_equal(found["w"].view(np.uint32).reshape(-1), whole + mask)
    assert found["w"].shape == (count, 1)


def test_sealed_text_opens_with_its_key_alone() -> None:
    key = new_private()
    assert opened(key, sealed(key, b"share"), where="d") == b"share"
    with pytest.raises(MessageRejected, match="cannot be opened"):
        opened(new_private(), sealed(key, b"share"), where="d")


def test_low_order_public_key_is_refused() -> None:
    with pytest.raises(MessageRejected, match="cannot be used"):
        agree(new_private(), bytes(32), "mask")


class TestNumbers:
    SEEDS = MaskSeeds((), ())

    def plain(self, moved: float, *, count: int = 10, **masking: Any) -> dict[str, np.ndarray]:
        """The update of one entry that moved from 0, without masks."""
        values = {"w": np.full((1,), moved, np.float32)}
        order = msgspec.structs.replace(MASKING, **masking)
        sent = {"w": np.zeros(1, np.float32)}
        return masked_update(["w"], values.__getitem__, sent, order, self.SEEDS, num_examples=count)

    def test_entry_is_weight_times_difference_in_steps(self) -> None:
        assert self.plain(0.5, step=0.25)["w"].tolist() == [20]
        assert self.plain(-0.5, step=0.25)["w"].tolist() == [-20]
        assert self.plain(0.5, step=0.25)[WEIGHT].tolist() == [10]
        assert self.plain(0.5, step=0.25, is_weighted=False)["w"].tolist() == [2]
        assert self.plain(0.5, step=0.25, is_weighted=False)[WEIGHT].tolist() == [1]

    def test_clipped_difference_is_rounded_towards_zero(self) -> None:
        kept = self.plain(3.0, step=0.4, is_weighted=False, clip_norm=1.0)
        assert kept["w"].tolist() == [2]  # 1.0 / 0.4 = 2.5

    def test_update_of_more_examples_weighs_as_much_as_the_order_has_room_for(self) -> None:
        assert self.plain(0.5, step=0.25, count=2**40)[WEIGHT].tolist() == [100]
        assert self.plain(0.5, step=0.25, count=101)["w"].tolist() == [200]

    def test_what_has_no_room_is_refused_not_wrapped(self) -> None:
        with pytest.raises(DeviceRefused, match=r"moved by 5 in one entry, .* room for 4; raise \$.privacy.mask-range"):
            self.plain(5.0, step=1.0, largest=40)
        with pytest.raises(DeviceRefused, match="moved by nan"):
            self.plain(float("nan"))


def test_bodies_are_the_contracts(devices: dict[str, Device]) -> None:
    agree_on_masks(devices)
    assert isinstance(devices["d0"].sent["keys"], Keys)
    assert isinstance(devices["d0"].sent["shares"], Shares)


def reveal_all(device: Device) -> None:
    device.tell("reveal", Reveal(device.order.assignment_id, NAMES, ()))


def test_half_a_line_of_a_full_disk_does_not_let_a_model_be_unmasked_twice(devices: dict[str, Device]) -> None:
    agree_on_masks(devices)
    device = devices["d0"]
    (device.folder / "told").write_bytes(b"0123456789abcdef")  # a disk took no more of it
    reveal_all(device)
    refusal = device.masker.refusal(Assignment.taken(msgspec.structs.replace(device.order, assignment_id="another")))
    assert refusal is not None


def test_order_that_is_called_as_the_file_of_models_leaves_it_alone(devices: dict[str, Device]) -> None:
    agree_on_masks(devices)
    device = devices["d0"]
    reveal_all(device)
    told = (device.folder / "told").read_bytes()
    named = msgspec.structs.replace(device.order, assignment_id="told")
    device.masker.tick(named, 100.0)
    assert (device.folder / "told").read_bytes() == told
    assert device.started().refusal(Assignment.taken(named)) is not None

"""A device that sends what it should not, in every way at hand: each answered with its reason, and the rounds go on.

One federation runs one round per mischief: two honest agents, and a third device that misbehaves. Below that the tests
read what each of the three was told and what counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from edge.contracts.codec import encode_msgpack
from edge.contracts.envelope import MAX_MESSAGE_BYTES, seal
from edge.contracts.messages import Accept, Ack, Error, Offer
from edge.contracts.plan import BlobRef, WorkOrder
from tests.federation.hostile_device import HostileDevice
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text

pytestmark = pytest.mark.runtime

HONEST = ["device-00", "device-01"]
MALLORY = "mallory"
FIRST = "fc2.u"
Mischief = Callable[[HostileDevice, WorkOrder], None]


def send(device: HostileDevice, order: WorkOrder, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    tensors = device.update(order)
    change(tensors)
    device.report(order, device.upload(order, tensors))
    device.wait_ack(order)


def report(device: HostileDevice, order: WorkOrder, **changes: object) -> None:
    device.report(order, device.upload(order, device.update(order)), **changes)
    device.wait_ack(order)


def other_blob(device: HostileDevice, order: WorkOrder) -> None:
    """Claim that the artifact's manifest is the update: it must be refused, and stay where it is."""
    device.report(order, order.artifact)
    device.wait_ack(order)


def other_bytes(device: HostileDevice, order: WorkOrder) -> None:
    tensors = device.update(order)
    for attempt in range(3):
        ref = device.upload(order, tensors, send=bytes(order.weights.size))
        device.report(order, ref)
        if attempt < 2:
            assert device.wait_grant(order, 3 * (attempt + 1)).offset == 0  # offered, put, then asked for again
    device.wait_ack(order)


def too_large(device: HostileDevice, order: WorkOrder) -> None:
    device.send("offer", Offer(order.assignment_id, BlobRef("a" * 64, 2**33, "raw", 2**33)))
    device.wait_ack(order)


def reported_thrice(device: HostileDevice, order: WorkOrder) -> None:
    ref = device.upload(order, device.update(order))
    for _ in range(3):
        device.report(order, ref)
    device.wait_ack(order, 3)


def another_device(device: HostileDevice, order: WorkOrder) -> None:
    device.send("report", "not a report", device="device-00")
    device.send("accept", Accept(order.assignment_id), device="device-00")
    device.finish(order)


def unreadable(device: HostileDevice, order: WorkOrder) -> None:
    """Messages no honest device sends, then an honest report: the device itself is not shut out."""
    device.send_bytes("report", b"\xc1" * 100)
    device.send_bytes("put", b"x" * (MAX_MESSAGE_BYTES + 1))
    device.send_bytes("hello", encode_msgpack({"v": 7, "id": "a", "kind": "hello", "sent_at": 0.0, "body": {}}))
    device.send_bytes("offer", seal("refuse", {}))
    device.send("report", {"assignment_id": 3})
    device.send("dance", {})
    device.finish(order)


def unknown_assignment(device: HostileDevice, order: WorkOrder) -> None:
    device.send("accept", Accept("f" * 64))
    device.send("offer", Offer("../../etc", BlobRef("a" * 64, 10, "raw", 10)))
    device.finish(order)


MISCHIEF: dict[str, tuple[Mischief, str | None]] = {
    "nan": (
        lambda d, o: send(d, o, lambda t: t[FIRST].__setitem__((0, 0), np.nan)),
        r"'fc2.u' holds 1 values that are not finite",
    ),
    "infinity": (lambda d, o: send(d, o, lambda t: t[FIRST].fill(-np.inf)), r"values that are not finite"),
    "huge": (lambda d, o: send(d, o, lambda t: t[FIRST].fill(1e30)), r"holds 1e\+30, at most 1e\+15"),
    "wrong shape": (
        lambda d, o: send(d, o, lambda t: t.update({FIRST: t[FIRST][1:]})),
        r"'fc2.u' has shape \(95, 24\), plan says \(96, 24\)",
    ),
    "wrong dtype": (
        lambda d, o: send(d, o, lambda t: t.update({FIRST: t[FIRST].astype(np.float16)})),
        r"'fc2.u' is float16, plan says float32",
    ),
    "missing tensor": (lambda d, o: send(d, o, lambda t: t.pop(FIRST)), r"1 tensors missing \['fc2.u'\]"),
    "unordered tensor": (
        lambda d, o: send(d, o, lambda t: t.update({"backdoor": np.zeros(3, np.float32)})),
        r"1 not ordered \['backdoor'\]",
    ),
    "not tensors": (other_blob, r"not a tensor file"),
    "other bytes": (other_bytes, r"3 uploads and never the announced bytes"),
    "too large": (too_large, rf"update of {2**33} bytes, at most"),
    "nan loss": (lambda d, o: report(d, o, loss=float("nan")), r"at `\$.loss`, not nan"),
    "nan metric": (lambda d, o: report(d, o, metrics={"accuracy": float("inf")}), r"<= 1e\+30 - at `\$.metrics"),
    "no examples": (lambda d, o: report(d, o, num_examples=0), r"stands for 0 examples, at least 1"),
    "impossible count": (lambda d, o: report(d, o, trainer_peak_bytes=2**64 - 1), r"trainer_peak_bytes`, not 1844674"),
    "other round": (lambda d, o: report(d, o, round=o.round + 5), r"report says device 'mallory', round \d+; the ass"),
    "reported thrice": (reported_thrice, None),
    "another device": (another_device, None),
    "unreadable": (unreadable, None),
    "unknown assignment": (unknown_assignment, None),
}
"""Name -> what Mallory does in its round, and why its update is rejected; None where it counts in the end."""

SILENT = len(MISCHIEF)
"""Then a round in which Mallory says nothing until it is over, and a last one in which all is as it should be."""


@dataclass
class Played:
    """What is left of the run."""

    stage: InProcessFederation
    mallory: HostileDevice
    orders: dict[int, WorkOrder] = field(default_factory=dict)

    def acks(self, round_index: int) -> list[Ack]:
        return self.mallory.acks[self.orders[round_index].assignment_id]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, exports: Path) -> Iterator[Played]:
    names = list(MISCHIEF)
    # Three rejected in a row would keep it out of the rounds that follow, and they are what this looks at.
    text = config_text(rounds=len(names) + 2, local=0, min_reports=2) + "\n[defences]\nbar-after = 0\n"
    with InProcessFederation(tmp_path_factory.mktemp("hostile"), exports, text) as stage:

        def behave(order: WorkOrder) -> None:
            result.orders[order.round] = order
            if order.round < SILENT:
                MISCHIEF[names[order.round]][0](mallory, order)
            elif order.round > SILENT:
                late = result.orders[SILENT]
                mallory.report(late, mallory.upload(late, mallory.update(order)))
                mallory.wait_ack(late)
                mallory.finish(order)

        def end_the_silence(point: str) -> None:
            assert mallory.failures == [], (sorted(result.orders), stage.lines.text[-1500:])
            # The deadline comes when both honest devices have reported.
            entry = stage.ledger.rounds.open()
            if (
                point == "collecting"
                and entry
                and entry.round == SILENT
                and len(stage.ledger.updates.of_attempt(SILENT, 0)) == 2
            ):
                stage.federation.devices.clock.start(0.0)

        with HostileDevice(stage.broker, stage.name, MALLORY, behave) as mallory:
            result = Played(stage, mallory)
            stage.on_point = end_the_silence
            for share, device in enumerate(HONEST):
                stage.write_data(device, share)
                stage.agent(device)
            stage.run()
            yield result


@pytest.mark.slow
def test_every_round_was_committed_at_the_first_attempt(played: Played) -> None:
    honest_too = [name for name, (_, why) in MISCHIEF.items() if why is None]
    expected = []
    for index, name in enumerate([*MISCHIEF, "silent", "last"]):
        counts = name in honest_too or name == "last"
        expected.append((index, 0, [*HONEST, MALLORY] if counts else HONEST))
    assert played.stage.committed() == expected


@pytest.mark.parametrize("name", [name for name, (_, why) in MISCHIEF.items() if why is not None])
def test_bad_update_is_rejected_with_its_reason(played: Played, name: str) -> None:
    index, why = list(MISCHIEF).index(name), MISCHIEF[name][1]
    assert why is not None
    (ack,) = played.acks(index)
    assert (ack.accepted, ack.code) == (False, "update-rejected")
    assert re.search(why, ack.reason), ack.reason
    assert f"device {MALLORY}" in ack.reason
    (entry,) = [a for a in played.stage.ledger.assignments.of_attempt(index, 0) if a.device == MALLORY]
    assert (entry.state, entry.code, entry.reason) == ("rejected", "update-rejected", ack.reason)
    assert played.stage.lines.having("update rejected", ack.reason[:80])


def test_report_repeated_counts_once(played: Played) -> None:
    index = list(MISCHIEF).index("reported thrice")
    assert [ack.accepted for ack in played.acks(index)] == [True] * 3


def test_report_after_the_deadline_is_stale_and_not_counted(played: Played) -> None:
    for ack in played.acks(SILENT):  # of its offer, of its report
        assert (ack.accepted, ack.code) == (False, "stale-round")
        assert f"round {SILENT}, attempt 0" in ack.reason
    (entry,) = [a for a in played.stage.ledger.assignments.of_attempt(SILENT, 0) if a.device == MALLORY]
    assert (entry.state, entry.code) == ("expired", "deadline-expired")
    assert played.stage.lines.having("deadline: no report from mallory")


def test_unreadable_messages_are_answered(played: Played) -> None:
    def told(text: str) -> list[Error]:
        return [error for error in played.mallory.errors if text in error.message]

    assert told(f"of {MAX_MESSAGE_BYTES + 1} bytes is over the limit of {MAX_MESSAGE_BYTES}")[0].code == "bad-message"
    assert told("message version 7, this release speaks 1")[0].code == "unsupported-version"
    assert told("topic says 'offer', the envelope says 'refuse'")
    assert told("of 100 bytes cannot be read")
    assert told("TrainReport of")
    assert played.stage.lines.having("message kind 'dance' is unknown here and was ignored")


def test_assignment_of_another_device_is_refused(played: Played) -> None:
    assert played.stage.lines.having("device-00", "belongs to 'mallory', not to 'device-00'")


def test_unknown_assignment_is_to_be_forgotten(played: Played) -> None:
    (ack,) = played.mallory.acks["f" * 64]
    assert (ack.accepted, ack.code) == (False, "unknown-assignment")
    assert not (played.stage.folder / "etc").exists()


def test_no_blob_is_lost_and_no_upload_is_left(played: Played) -> None:
    blobs = played.stage.federation.blobs
    known = played.stage.ledger.blobs.sizes()
    assert set(known) <= set(blobs.digests())
    for digest in known:
        blobs.verify(digest)
    assert list((blobs.root / "partial").iterdir()) == []

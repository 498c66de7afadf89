"""Every handler of the inbox, over a ledger and a blob store on disk and the in-memory broker; one thread, by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.blob_store import BlobStore
from coordinator.cohort import Cohort
from coordinator.inbox import UPLOAD_BLOCK_BYTES, UPLOAD_TRIES, UPLOAD_WINDOW, Inbox
from coordinator.ledger import Ledger
from coordinator.ledger_records import Assignment
from coordinator.publisher import Publisher
from edge.contracts import topics
from edge.contracts.codec import encode_msgpack
from edge.contracts.envelope import seal, unseal
from edge.contracts.messages import (
    BODIES,
    Accept,
    Ack,
    Bye,
    Error,
    Get,
    Heartbeat,
    Hello,
    Offer,
    Put,
    Refuse,
)
from edge.contracts.plan import BlobRef, Schedule, WorkOrder, assignment_id
from edge.contracts.tensor_file import encode_tensors
from edge.contracts.tensors import TensorSpec
from edge.transport.in_memory import InMemoryBroker, InMemoryTransport
from profiles.device import DeviceProfile
from tests.contracts.samples import MANIFEST, REPORT

FEDERATION = "fed"
DEVICES = ("pi-1", "pi-2")
SHAPE = (10, 64)
UPDATE = encode_tensors({"fc1.weight": np.full(SHAPE, 0.5, np.float32)})


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def ref_of(data: bytes) -> BlobRef:
    return BlobRef(digest_of(data), len(data), "raw", len(data))


class Desk:
    """A coordinator without a round: one open order per device, and what every device was sent."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self.ledger = ledger
        self.blobs = BlobStore(folder / "blobs")
        self.cohort = Cohort()
        self.said: list[str] = []
        self.points: list[str] = []
        self.sent: list[tuple[str, str, Any]] = []
        broker = InMemoryBroker()
        self._devices = InMemoryTransport(broker, subscriptions=(f"{topics.PREFIX}/{FEDERATION}/#",))
        self._devices.start(self._take)
        transport = InMemoryTransport(broker, subscriptions=())
        transport.start(lambda event: None)
        self.publisher = Publisher(FEDERATION, self.blobs, transport)
        self.inbox = Inbox(
            FEDERATION,
            ledger=ledger,
            blobs=self.blobs,
            cohort=self.cohort,
            publisher=self.publisher,
            remaining_s=lambda: 12.5,
            say=self.said.append,
            on_point=self.points.append,
        )
        manifest = msgspec.structs.replace(
            MANIFEST, tensors=(*MANIFEST.tensors, TensorSpec("fc1.bias", (10,), "float32", "parameter"))
        ).to_bytes()
        self.artifact = ref_of(manifest)
        self.blobs.put(manifest)
        ledger.add_blob(self.artifact.digest, self.artifact.size)
        self.weights = self.blobs.put(b"weights")
        self.orders = {device: self._order(device) for device in DEVICES}
        ledger.plan_round(0, 0, deadline_s=60, assignments=[self._assignment(order) for order in self.orders.values()])
        ledger.move_round(0, 0, "published")

    def _order(self, device: str) -> WorkOrder:
        return WorkOrder(
            assignment_id=assignment_id(FEDERATION, 0, device, 0),
            federation=FEDERATION,
            device=device,
            round=0,
            attempt=0,
            artifact=self.artifact,
            weights=BlobRef(self.weights, 7, "raw", 7),
            schedule=Schedule(epochs=1),
            batch=16,
            last_batch="drop",
            data_seed=1,
            hyper={},
            upload=("fc1.weight",),
            peak_bytes=100,
        )

    def _assignment(self, order: WorkOrder) -> Assignment:
        return Assignment(
            assignment_id=order.assignment_id,
            round=0,
            attempt=0,
            device=order.device,
            level="full",
            cut={},
            artifact_digest=self.artifact.digest,
            weights_digest=self.weights,
            order=encode_msgpack(order),
        )

    def _take(self, event: Any) -> None:
        payload = getattr(event, "payload", None)
        if payload is not None:
            device, kind = event.topic.split("/")[-2:]
            envelope = unseal(payload)
            body = None if kind == "hello" else envelope.read(BODIES[kind])
            self.sent.append((device, kind, body))

    def gets(self, device: str, kind: str, body: Any) -> list[tuple[str, Any]]:
        """Hand in one message of ``device``; (kind, body) of everything it caused to be sent to that device."""
        self.sent.clear()
        self.inbox.handle(topics.up(FEDERATION, device, kind), seal(kind, body))
        assert all(to == device for to, _, _ in self.sent)
        return [(kind, body) for _, kind, body in self.sent]

    def id(self, device: str = "pi-1") -> str:
        return self.orders[device].assignment_id

    def state(self, device: str = "pi-1") -> str:
        entry = self.ledger.assignment(self.id(device))
        assert entry is not None
        return entry.state

    def upload(self, device: str = "pi-1", data: bytes = UPDATE, announced: BlobRef | None = None) -> BlobRef:
        ref = announced or ref_of(data)
        self.gets(device, "offer", Offer(self.id(device), ref))
        self.gets(device, "put", Put(self.id(device), ref.digest, 0, data))
        return ref

    def report(self, ref: BlobRef, **changes: Any) -> list[tuple[str, Any]]:
        own = {"assignment_id": self.id(), "device": "pi-1", "round": 0, "update": ref}
        return self.gets("pi-1", "report", msgspec.structs.replace(REPORT, **{**own, **changes}))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation=FEDERATION, config="", seed=0) as ledger:
        desk = Desk(tmp_path, ledger)
        yield desk
        desk.publisher.close()


def hello(device: str, **changes: Any) -> Hello:
    profile = DeviceProfile(device=device, budget_bytes=160 * 2**20)
    given: dict[str, Any] = {"device": device, "agent_version": "0", "profile": profile, "runtimes": {}}
    return Hello(**{**given, "num_examples": 7, **changes})


def test_hello_is_answered_with_the_open_order_and_the_time_left(desk: Desk) -> None:
    ((kind, order),) = desk.gets("pi-1", "hello", hello("pi-1"))
    assert kind == "order"
    assert order == msgspec.structs.replace(desk.orders["pi-1"], deadline_s=12.5)
    assert [h.device for h in desk.cohort.present()] == ["pi-1"]
    assert desk.said == ["pi-1 is here: budget 160 MB, 7 examples"]


def test_hello_of_a_device_without_an_order_is_not_answered(desk: Desk) -> None:
    assert desk.gets("pi-9", "hello", hello("pi-9", data_error="a.npz is truncated")) == []
    assert desk.said == ["pi-9 is here: budget 160 MB, 7 examples, data: a.npz is truncated"]


def test_hello_repeated_is_said_once(desk: Desk) -> None:
    desk.gets("pi-1", "hello", hello("pi-1"))
    desk.gets("pi-1", "hello", hello("pi-1"))
    assert len(desk.said) == 1


def test_hello_on_the_topic_of_another_is_not_used(desk: Desk) -> None:
    ((kind, error),) = desk.gets("pi-1", "hello", hello("pi-2"))
    assert (kind, error.code) == ("error", "bad-message")
    assert "hello of 'pi-2' arrived on the topic of 'pi-1'" in error.message
    assert desk.cohort.present() == []


def test_hello_with_a_profile_the_ledger_could_not_read_back_is_not_used(desk: Desk) -> None:
    profile = DeviceProfile(device="pi-1", probed_at=float("nan"))
    ((kind, error),) = desk.gets("pi-1", "hello", hello("pi-1", profile=profile))
    assert (kind, error.code) == ("error", "bad-message")
    assert "pi-1: profile: holds a number that is not finite" in error.message
    assert desk.cohort.present() == []


def test_heartbeat_of_a_stranger_is_answered_with_a_call_for_its_hello(desk: Desk) -> None:
    assert desk.gets("pi-1", "heartbeat", Heartbeat(state="training")) == [("hello", None)]
    desk.gets("pi-1", "hello", hello("pi-1"))
    assert desk.gets("pi-1", "heartbeat", Heartbeat(state="training", loss=float("nan"))) == []
    member = desk.cohort.member("pi-1")
    assert member is not None
    assert member.heartbeat is not None
    assert member.heartbeat.state == "training"


def test_bye_takes_a_device_away(desk: Desk) -> None:
    desk.gets("pi-1", "hello", hello("pi-1"))
    assert desk.gets("pi-1", "bye", Bye("connection lost")) == []
    assert desk.cohort.present() == []


def test_accept_moves_the_assignment_once_and_wakes_the_round(desk: Desk) -> None:
    assert desk.gets("pi-1", "accept", Accept(desk.id())) == []
    assert desk.state() == "accepted"
    desk.inbox.wait(5.0)  # returns at once: there was news before it was asked
    assert desk.gets("pi-1", "accept", Accept(desk.id())) == []
    assert desk.state() == "accepted"


def test_refuse_is_recorded_and_acknowledged(desk: Desk) -> None:
    refusal = Refuse(assignment_id=desk.id(), code="device-refused", reason="needs 200 bytes, the budget is 100")
    ((kind, ack),) = desk.gets("pi-1", "refuse", refusal)
    assert (kind, ack.accepted, ack.code) == ("ack", False, "refused")
    entry = desk.ledger.assignment(desk.id())
    assert entry is not None
    assert (entry.state, entry.code, entry.reason) == ("refused", refusal.code, refusal.reason)
    ((_, again),) = desk.gets("pi-1", "accept", Accept(desk.id()))
    assert (again.accepted, again.code) == (False, "device-refused")


def test_refuse_for_corruption_drops_a_blob_that_is_rotten_here(desk: Desk) -> None:
    path = desk.blobs.path(desk.weights)
    path.write_bytes(b"weightz")
    desk.gets("pi-1", "get", Get(desk.weights, "raw", 0, 7))
    desk.gets("pi-1", "refuse", Refuse(assignment_id=desk.id(), code="artifact-corrupt", reason="twice"))
    assert not path.exists()
    assert desk.artifact.digest in desk.blobs
    assert any(f"blob {desk.weights[:12]} holds bytes of digest" in line for line in desk.said)
    ((kind, error),) = desk.gets("pi-2", "get", Get(desk.weights, "raw", 0, 7))
    assert (kind, error.code) == ("error", "unknown-blob")


def test_refuse_for_corruption_on_the_way_drops_nothing(desk: Desk) -> None:
    desk.gets("pi-1", "refuse", Refuse(assignment_id=desk.id(), code="artifact-corrupt", reason="twice"))
    assert desk.weights in desk.blobs
    assert desk.artifact.digest in desk.blobs


def test_offer_is_granted_from_where_an_earlier_upload_stopped(desk: Desk) -> None:
    ref = ref_of(UPDATE)
    ((kind, grant),) = desk.gets("pi-1", "offer", Offer(desk.id(), ref))
    assert (kind, grant.offset, grant.block_bytes, grant.window) == ("grant", 0, UPLOAD_BLOCK_BYTES, UPLOAD_WINDOW)
    desk.gets("pi-1", "put", Put(desk.id(), ref.digest, 0, UPDATE[:100]))
    ((_, grant),) = desk.gets("pi-1", "offer", Offer(desk.id(), ref))
    assert grant.offset == 100


def test_offer_of_more_than_was_ordered_is_rejected(desk: Desk) -> None:
    ((kind, ack),) = desk.gets("pi-1", "offer", Offer(desk.id(), BlobRef("a" * 64, 10**8, "raw", 10**8)))
    assert (kind, ack.code) == ("ack", "update-rejected")
    assert f"update of {10**8} bytes, at most {10 * 64 * 4 + 4 * 2**20} ordered" in ack.reason
    assert desk.state() == "rejected"


@pytest.mark.parametrize("digest", ["../../etc/passwd", "A" * 64, "a" * 63, ""])
def test_offer_of_what_is_no_digest_is_an_error(desk: Desk, digest: str) -> None:
    ((kind, error),) = desk.gets("pi-1", "offer", Offer(desk.id(), BlobRef(digest, 10, "raw", 10)))
    assert (kind, error.code) == ("error", "bad-message")
    assert desk.state() == "open"


def test_put_out_of_order_or_repeated_is_answered_with_where_to_go_on(desk: Desk) -> None:
    ref = ref_of(UPDATE)
    desk.gets("pi-1", "offer", Offer(desk.id(), ref))
    ((_, grant),) = desk.gets("pi-1", "put", Put(desk.id(), ref.digest, 100, UPDATE[100:200]))
    assert grant.offset == 0
    for _ in range(2):
        ((_, grant),) = desk.gets("pi-1", "put", Put(desk.id(), ref.digest, 0, UPDATE[:100]))
        assert grant.offset == 100
    ((_, grant),) = desk.gets("pi-1", "put", Put(desk.id(), ref.digest, 100, UPDATE[100:]))
    assert grant.offset == len(UPDATE)
    assert desk.points.count("mid-upload") == 4


def test_put_that_was_not_offered_is_ignored(desk: Desk) -> None:
    assert desk.gets("pi-1", "put", Put(desk.id(), digest_of(UPDATE), 0, UPDATE)) == []
    desk.upload()
    assert desk.gets("pi-1", "put", Put(desk.id(), "b" * 64, 0, UPDATE)) == []


def test_report_is_recorded_before_it_is_acknowledged_and_counts_once(desk: Desk) -> None:
    ref = desk.upload()
    for _ in range(3):
        ((kind, ack),) = desk.report(ref)
        assert (kind, ack) == ("ack", Ack(desk.id(), True))
    (update,) = desk.ledger.updates(0, 0)
    assert (update.update_digest, update.report.num_examples) == (ref.digest, REPORT.num_examples)
    assert desk.blobs.read(ref.digest) == UPDATE
    assert ref.digest in desk.ledger.blobs()
    assert list((desk.blobs.root / "partial").iterdir()) == []


def test_report_leaves_a_measurement(desk: Desk) -> None:
    desk.report(desk.upload(), trainer_peak_bytes=70, supervisor_peak_bytes=31, step_ms_p50=4.5)
    (measured,) = desk.ledger.measurements()
    assert (measured.device, measured.export_key, measured.batch) == ("pi-1", MANIFEST.export_key, 16)
    assert (measured.predicted_peak_bytes, measured.measured_peak_bytes, measured.step_ms) == (100, 101, 4.5)


def test_report_after_a_restart_of_the_coordinator_needs_no_second_upload(desk: Desk, tmp_path: Path) -> None:
    ref = desk.upload()
    desk.inbox._uploads.clear()  # what a new process does not have
    ((_, ack),) = desk.report(ref)
    assert ack.accepted


def test_report_without_all_bytes_asks_for_them_and_the_upload_goes_on(desk: Desk) -> None:
    ref = ref_of(UPDATE)
    ((kind, grant),) = desk.report(ref)
    assert (kind, grant.offset) == ("grant", 0)
    desk.gets("pi-1", "put", Put(desk.id(), ref.digest, 0, UPDATE))
    ((_, ack),) = desk.report(ref)
    assert ack.accepted


def test_report_of_other_bytes_is_rejected_after_some_tries(desk: Desk) -> None:
    ref = ref_of(UPDATE)
    for _ in range(UPLOAD_TRIES - 1):
        desk.upload(data=bytes(len(UPDATE)), announced=ref)
        ((kind, _),) = desk.report(ref)
        assert kind == "grant"
    desk.upload(data=bytes(len(UPDATE)), announced=ref)
    ((kind, ack),) = desk.report(ref)
    assert (kind, ack.code) == ("ack", "update-rejected")
    assert f"{UPLOAD_TRIES} uploads and never the announced bytes" in ack.reason
    assert desk.ledger.updates(0, 0) == ()


def test_report_that_names_a_blob_of_ours_is_rejected_and_the_blob_stays(desk: Desk) -> None:
    ((_, ack),) = desk.report(desk.artifact)
    assert not ack.accepted
    assert "the update is not a tensor file" in ack.reason
    assert desk.artifact.digest in desk.blobs


@pytest.mark.parametrize(
    ("tensors", "why"),
    [
        ({"fc1.weight": np.full(SHAPE, np.nan, np.float32)}, r"'fc1.weight' holds 640 values that are not finite"),
        ({"fc1.weight": np.full(SHAPE, 2e15, np.float32)}, r"'fc1.weight' holds 2e+15, at most 1e+15"),
        ({"fc1.weight": np.zeros((64, 10), np.float32)}, "has shape (64, 10), plan says (10, 64)"),
        ({"fc1.weight": np.zeros(SHAPE, np.float16)}, "is float16, plan says float32"),
        ({"fc1.bias": np.zeros(10, np.float32)}, "1 tensors missing ['fc1.weight'], 1 not ordered ['fc1.bias']"),
    ],
    ids=["nan", "huge", "shape", "dtype", "names"],
)
def test_report_of_another_update_than_ordered_is_rejected(
    desk: Desk, tensors: dict[str, np.ndarray], why: str
) -> None:
    ((_, ack),) = desk.report(desk.upload(data=encode_tensors(tensors)))
    assert (ack.accepted, ack.code) == (False, "update-rejected")
    assert f"device pi-1, round 0: {why}" in ack.reason.replace("update for 'fc1.weight' ", "")
    assert desk.state() == "rejected"
    assert desk.state("pi-2") == "open"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"loss": float("nan")}, "holds a number that is not finite"),
        ({"metrics": {"accuracy": float("-inf")}}, "holds a number that is not finite"),
        ({"num_examples": 0}, "stands for 0 examples, at least 1 expected"),
        ({"num_examples": -5}, "stands for -5 examples"),
        ({"steps": 2**63}, f"says steps {2**63}, a count up to {2**53} expected"),
        ({"bytes_down": -1}, "says bytes_down -1"),
        ({"device": "pi-2"}, "report says device 'pi-2', round 0"),
        ({"round": 1}, "report says device 'pi-1', round 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_report_that_the_ledger_or_a_mean_could_not_take_is_rejected(
    desk: Desk, changes: dict[str, Any], why: str
) -> None:
    ((_, ack),) = desk.report(desk.upload(), **changes)
    assert (ack.accepted, ack.code) == (False, "update-rejected")
    assert why in ack.reason
    assert desk.ledger.updates(0, 0) == ()


def test_report_after_the_deadline_is_stale(desk: Desk) -> None:
    ref = desk.upload()
    assert desk.ledger.expire(desk.id())
    ((_, ack),) = desk.report(ref)
    assert (ack.accepted, ack.code) == (False, "stale-round")
    assert ack.reason == "round 0, attempt 0: assignment is expired. no report before the deadline"
    assert desk.ledger.updates(0, 0) == ()


def test_expire_leaves_an_answered_assignment_alone(desk: Desk) -> None:
    desk.report(desk.upload())
    assert not desk.ledger.expire(desk.id())
    assert desk.state() == "reported"


def test_assignment_of_another_device_is_an_error(desk: Desk) -> None:
    ((kind, error),) = desk.gets("pi-2", "accept", Accept(desk.id("pi-1")))
    assert (kind, error.code) == ("error", "bad-message")
    assert "belongs to 'pi-1', not to 'pi-2'" in error.message
    assert desk.state("pi-1") == "open"


def test_assignment_of_another_run_is_to_be_forgotten(desk: Desk) -> None:
    ((kind, ack),) = desk.gets("pi-1", "accept", Accept("e" * 64))
    assert (kind, ack.accepted, ack.code) == ("ack", False, "unknown-assignment")


def test_error_is_told(desk: Desk) -> None:
    assert desk.gets("pi-1", "error", Error("bad-message", "Grant cannot be read")) == []
    assert desk.said == ["pi-1 reports bad-message: Grant cannot be read"]


def test_unknown_kind_is_told_and_ignored(desk: Desk) -> None:
    assert desk.gets("pi-1", "dance", {}) == []
    assert desk.said == ["pi-1: message kind 'dance' is unknown here and was ignored"]


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("apportion/v1/fed/dn/pi-1/hello", "is not apportion/v1/<federation>/up/<device>/<kind>"),
        ("apportion/v1/fed/up/../hello", "device id '..' is not usable"),
        ("apportion/v1/other/up/pi-1/hello", "topic names federation 'other', this is 'fed'"),
        ("apportion/v1/fed/up/pi-1/accept", "topic says 'accept', the envelope says 'hello'"),
    ],
)
def test_wrong_topic_is_told_and_changes_nothing(desk: Desk, topic: str, why: str) -> None:
    desk.inbox.handle(topic, seal("hello", hello("pi-1")))
    assert why in desk.said[0]
    assert desk.cohort.present() == []


def test_connected_calls_everyone_and_announces_to_those_known(desk: Desk) -> None:
    desk.gets("pi-1", "hello", hello("pi-1"))
    desk.sent.clear()
    desk.inbox.connected()
    assert [(device, kind) for device, kind, _ in desk.sent] == [("all", "hello"), ("pi-1", "order")]


def test_announce_sends_nothing_once_a_round_is_aggregating(desk: Desk) -> None:
    desk.report(desk.upload())
    desk.ledger.move_round(0, 0, "collecting")
    desk.ledger.move_round(0, 0, "aggregating", participants=["pi-1"])
    assert desk.gets("pi-2", "hello", hello("pi-2")) == []

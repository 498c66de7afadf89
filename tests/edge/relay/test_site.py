"""A relay over in-memory brokers: what it passes down, what up, whose updates count, and what it refuses."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edge.contracts import topics
from edge.contracts.envelope import seal
from edge.contracts.errors import SignatureRejected
from edge.contracts.masking import Masking
from edge.contracts.messages import Get, Offer, Put, Refuse
from edge.contracts.plan import BlobRef, assignment_id
from edge.contracts.signing import order_message
from edge.contracts.streams import stream_seed
from edge.identity.trust import Trust
from edge.relay.relay import Relay
from edge.relay.settings import RelaySettings
from edge.relay.site_key import SiteKey
from edge.relay.site_work import SiteWork
from edge.supervisor.outbox import farewell_message
from edge.transfer.artifact_store import ArtifactStore
from edge.transport.in_memory import InMemoryBroker, InMemoryTransport
from tests.edge.relay.site_bench import RELAY, SITE, ScriptedDevice, assert_is, expected_mean, site_job
from tests.edge.scripted_coordinator import ScriptedCoordinator
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


class Site:
    """Both brokers, the coordinator's script, the relay and its devices."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.above, self.below = InMemoryBroker(), InMemoryBroker()
        listening = InMemoryTransport(self.above, subscriptions=[topics.coordinator_filter("fed")])
        self.coordinator = ScriptedCoordinator(listening, device=RELAY)
        self.coordinator.start()
        self.devices: list[ScriptedDevice] = []
        self.failures: list[BaseException] = []
        self._relays: list[tuple[Relay, threading.Thread]] = []

    def relay(self, **settings: Any) -> Relay:
        chosen = RelaySettings(**{"federation": "fed", "device": RELAY, "site": SITE, "heartbeat_s": 0.2, **settings})
        up = InMemoryTransport(
            self.above,
            subscriptions=topics.device_filters("fed", RELAY),
            will=farewell_message("fed", RELAY, "connection lost"),
        )
        down = InMemoryTransport(self.below, subscriptions=[topics.coordinator_filter(SITE)])
        relay = Relay(chosen, up, down, ArtifactStore(self.folder / "relay"))

        def run() -> None:
            try:
                relay.run()
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        self._relays.append((relay, thread))
        return relay

    def device(self, name: str, *, examples: int, add: float = 0.0, **profile: Any) -> ScriptedDevice:
        transport = InMemoryTransport(self.below, subscriptions=topics.device_filters(SITE, name))
        device = ScriptedDevice(name, transport, self.folder / name, examples=examples, add=add, **profile)
        self.devices.append(device)
        device.start()
        return device

    def ready(self, count: int) -> None:
        """The relay has said hello for so many examples."""
        self.coordinator.wait_for("hello", where=lambda hello: hello.num_examples == count)

    def order(self, **fields: Any) -> Any:
        job = site_job()
        job.order = msgspec.structs.replace(job.order, **fields)
        self.coordinator.blobs.update(job.blobs)
        self.coordinator.order(job.order)
        return job

    def close(self) -> None:
        for relay, thread in self._relays:
            relay.stop("test over")
            thread.join(10)
            assert not thread.is_alive()
        for device in self.devices:
            device.stop()
        self.coordinator.stop()
        assert self.failures == []


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_one_update_is_the_mean_of_the_devices_and_the_report_is_the_sites(site: Site) -> None:
    site.relay(min_devices=2)
    first, second = site.device("a", examples=30, add=0.5), site.device("b", examples=10, add=-0.25)
    site.ready(40)
    job = site.order()
    report = site.coordinator.wait_for("report")
    assert_is(site.coordinator.updates[job.order.assignment_id], expected_mean(job, first, second))
    assert (report.num_examples, report.site_devices, report.device) == (40, 2, RELAY)
    assert report.loss == (30 * 30 + 10 * 10) / 40
    assert (report.step_ms_p50, report.trainer_peak_bytes) == (20.0, 30_000)
    kinds = site.coordinator.kinds()
    assert (kinds.count("accept"), kinds.count("report")) == (1, 1)
    wait_until(lambda: not any((site.folder / "relay" / "site").iterdir()), "the work's folder is removed")
    assert all(ack.accepted for device in site.devices for ack in device.acks)


def test_each_device_has_its_own_batch_order_and_assignment_of_the_same_work(site: Site) -> None:
    site.relay(min_devices=2)
    first, second = site.device("a", examples=3), site.device("b", examples=4)
    site.ready(7)
    job = site.order(bulk="https://nowhere.invalid/a/", upload_to="https://nowhere.invalid/b/")
    site.coordinator.wait_for("report")
    for device in (first, second):
        order = device.orders[0]
        assert (order.federation, order.device) == (SITE, device.name)
        assert order.data_seed == stream_seed(job.order.data_seed, "batch-order", job.order.round, device.name)
        same = ("artifact", "weights", "schedule", "hyper", "upload", "batch", "round")
        assert [getattr(order, name) for name in same] == [getattr(job.order, name) for name in same]
        assert (order.summable, order.bulk, order.upload_to) == (False, "", "")
    assert len({first.orders[0].assignment_id, second.orders[0].assignment_id, job.order.assignment_id}) == 3


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"summable": False}, "not-summable", "join directly"),
        ({"report_labels": True}, "not-summable", "join directly"),
        ({"precision": "int8"}, "unsupported-precision", "int8"),
        ({"masking": Masking(step=1e-6, largest=1000, max_weight=10)}, "masking-missing", "masks"),
        ({"upload": ("fc.weight", "fc.weight#squares")}, "not-summable", "fc.weight#squares"),
    ],
    ids=["not-summable", "labels", "precision", "masking", "accumulators"],
)
def test_order_that_no_mean_stands_for_is_refused_with_the_reason(
    site: Site, fields: dict[str, Any], code: str, words: str
) -> None:
    site.relay()
    device = site.device("a", examples=5)
    site.ready(5)
    site.order(**fields)
    refusal = site.coordinator.wait_for("refuse")
    assert refusal.code == code
    assert words in refusal.reason
    assert device.orders == []


def test_hello_stands_for_the_devices_that_are_served(site: Site) -> None:
    site.relay(min_devices=2, least_budget_bytes=10**8)
    site.device("a", examples=5)
    site.device("b", examples=7, budget_bytes=10**7)
    few = site.coordinator.wait_for("hello", where=lambda hello: hello.data_error != "")
    assert few.data_error == "1 of at least 2 devices are here"
    site.device("c", examples=11, budget_bytes=5 * 10**8, ram_bytes=10**9)
    site.ready(16)
    hello = site.coordinator.wait_for("hello", where=lambda h: h.profile.budget_bytes == 5 * 10**8)
    assert (hello.device, hello.profile.device, hello.data_error) == (RELAY, RELAY, "")
    assert hello.profile.ram_bytes == 10**9


def test_what_is_in_at_the_devices_deadline_counts(site: Site) -> None:
    site.relay(min_devices=1, share=0.3)
    first, late = site.device("a", examples=30, add=1.0), site.device("b", examples=10, add=2.0)
    late.is_working.clear()
    site.ready(40)
    job = site.order(deadline_s=10.0)
    report = site.coordinator.wait_for("report", timeout_s=9.0)
    assert (report.site_devices, report.num_examples) == (1, 30)
    assert_is(site.coordinator.updates[job.order.assignment_id], expected_mean(job, first))
    assert 0 < late.orders[0].deadline_s <= 3.0
    wait_until(lambda: late.acks, "the late device is told")
    assert (late.acks[0].accepted, late.acks[0].code) == (False, "stale-round")


def test_fewer_updates_than_wanted_are_not_passed_on(site: Site) -> None:
    site.relay(min_devices=2)
    site.device("a", examples=30)
    second = site.device("b", examples=10)
    second.is_working.clear()
    site.ready(40)
    site.order()
    wait_until(lambda: second.orders, "ordered")
    second.send("refuse", Refuse(assignment_id=second.orders[0].assignment_id, code="out-of-memory", reason="too big"))
    refusal = site.coordinator.wait_for("refuse")
    assert refusal.code == "too-few-devices"
    assert "1 updates of at least 2" in refusal.reason
    assert "b: out-of-memory: too big" in refusal.reason
    assert "report" not in site.coordinator.kinds()


@pytest.mark.parametrize("harm", ["nan", "shape", "examples", "loss"])
def test_update_that_would_spoil_the_mean_is_rejected_and_the_others_count(site: Site, harm: str) -> None:
    site.relay()
    first, bad = site.device("a", examples=30, add=1.0), site.device("b", examples=10)
    if harm == "nan":
        bad.change = lambda weights: {name: value * np.float32("nan") for name, value in weights.items()}
    elif harm == "shape":
        bad.change = lambda weights: {name: value[:1] for name, value in weights.items()}
    elif harm == "examples":
        bad.describe = lambda report: msgspec.structs.replace(report, num_examples=11)
    else:
        bad.describe = lambda report: msgspec.structs.replace(report, loss=float("inf"))
    site.ready(40)
    job = site.order()
    report = site.coordinator.wait_for("report")
    assert (report.site_devices, report.num_examples) == (1, 30)
    assert_is(site.coordinator.updates[job.order.assignment_id], expected_mean(job, first))
    assert [(ack.accepted, ack.code) for ack in bad.acks] == [(False, "update-rejected")]


def test_device_cannot_answer_for_another_nor_read_its_update(site: Site) -> None:
    site.relay(min_devices=3)
    first, second = site.device("a", examples=30, add=0.5), site.device("b", examples=10, add=1.5)
    third = site.device("c", examples=2)
    third.is_working.clear()
    site.ready(42)
    site.order()
    wait_until(lambda: first.acks and second.acks and third.orders, "two updates are in")
    third.send("refuse", Refuse(assignment_id=first.orders[0].assignment_id, code="x", reason="not mine"))
    wait_until(lambda: third.acks, "answered")
    assert third.acks[0].code == "unknown-assignment"
    digest = hashlib.sha256((site.folder / "a" / "update").read_bytes()).hexdigest()
    third.send("get", Get(digest, "raw", 0, 100))
    wait_until(lambda: third.errors, "refused")
    assert third.errors[0].code == "unknown-blob"
    third.is_working.set()
    assert site.coordinator.wait_for("report").site_devices == 3


def test_device_that_offers_ever_new_updates_keeps_one_and_drops_nothing_of_others(site: Site) -> None:
    site.relay()
    honest, liar = site.device("a", examples=30, add=0.5), site.device("b", examples=10, add=3.0)
    liar.is_working.clear()
    site.ready(40)
    job = site.order()
    wait_until(lambda: honest.acks and liar.orders, "one update is in")
    identity, size = liar.orders[0].assignment_id, liar.orders[0].weights.size
    for number in range(30):
        data = bytes([number]) * size
        ref = BlobRef(hashlib.sha256(data).hexdigest(), size, "raw", size)
        liar.send("offer", Offer(identity, ref))
        liar.send("put", Put(identity, ref.digest, 0, data[:-1]))
    partial = site.folder / "relay" / "partial"
    wait_until(lambda: (partial / f"{ref.digest}.raw").is_file(), "the last one is taken")
    assert len(list(partial.iterdir())) == 1
    liar.send("offer", Offer(identity, liar.orders[0].artifact))
    liar.send("refuse", Refuse(assignment_id=identity, code="x", reason="enough"))
    report = site.coordinator.wait_for("report")
    assert (report.site_devices, report.num_examples) == (1, 30)
    assert_is(site.coordinator.updates[job.order.assignment_id], expected_mean(job, honest))
    assert (site.folder / "relay" / "blobs" / liar.orders[0].artifact.digest).is_file()


def test_relay_goes_on_when_the_link_above_was_down(site: Site) -> None:
    site.relay(min_devices=2)
    first, second = site.device("a", examples=30, add=0.5), site.device("b", examples=10, add=3.0)
    second.is_working.clear()
    site.ready(40)
    job = site.order()
    wait_until(lambda: first.acks and second.orders, "one update is in")
    site.above.stop()
    second.is_working.set()
    wait_until(lambda: second.acks, "the second while nobody is above")
    site.above.start()
    site.coordinator.wait_for("report")
    assert_is(site.coordinator.updates[job.order.assignment_id], expected_mean(job, first, second))


def test_lost_blocks_and_repeated_orders_change_nothing(site: Site) -> None:
    count = 0

    def drop(topic: str, payload: bytes, qos: int) -> bool:
        nonlocal count
        count += qos == 0
        return qos == 0 and count % 11 == 0

    site.above.drop = site.below.drop = drop
    site.relay(min_devices=2)
    first, second = site.device("a", examples=30, add=0.5), site.device("b", examples=10, add=3.0)
    site.ready(40)
    job = site.order()
    site.coordinator.order(job.order)
    site.coordinator.wait_for("report", timeout_s=60)
    assert_is(site.coordinator.updates[job.order.assignment_id], expected_mean(job, first, second))
    assert (len(first.trained), len(second.trained)) == (1, 1)


def test_which_updates_count_is_decided_once(site: Site) -> None:
    relay = site.relay()
    first, late = site.device("a", examples=30, add=1.0), site.device("b", examples=10, add=2.0)
    late.is_working.clear()
    site.ready(40)
    job = site.order()
    wait_until(lambda: first.acks and late.orders, "one update is in")
    relay.stop("killed between the decision and the sum")
    wait_until(lambda: not site._relays[0][1].is_alive(), "ended")
    work = SiteWork.load(site.folder / "relay" / "site")
    assert work is not None
    work.close()
    late.is_working.set()
    site.relay()
    report = site.coordinator.wait_for("report")
    assert report.num_examples == 30
    assert_is(site.coordinator.updates[job.order.assignment_id], expected_mean(job, first))
    wait_until(lambda: late.acks, "the late device is told")
    assert not late.acks[0].accepted


def test_orders_are_signed_by_the_site_and_manifests_by_whoever_made_them(site: Site) -> None:
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    above, own = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    site.relay(trust=Trust([above.public_key()]), key=SiteKey(own))
    device = site.device("a", examples=30, add=1.0)
    site.ready(30)
    job = site_job()
    site.coordinator.blobs.update(job.blobs)
    site.coordinator.order(job.order)
    assert site.coordinator.wait_for("refuse").code == "bad-signature"
    manifest = job.blobs[job.order.artifact.digest]
    order = msgspec.structs.replace(job.order, round=1, artifact_signature=above.sign(manifest))
    order = msgspec.structs.replace(order, assignment_id=assignment_id("fed", 1, RELAY, 0))
    site.coordinator.send_bytes("order", seal("order", order, sign=lambda body: above.sign(order_message(body))))
    site.coordinator.wait_for("report")
    got, envelope = device.orders[0], device.envelopes[0]
    Trust([own.public_key()]).check_order(got, bytes(envelope.body), envelope.signature)
    with pytest.raises(SignatureRejected):
        Trust([above.public_key()]).check_order(got, bytes(envelope.body), envelope.signature)
    Trust([above.public_key()]).check_manifest(manifest, got.artifact_signature)

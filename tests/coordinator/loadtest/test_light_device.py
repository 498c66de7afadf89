"""A light device against scripted answers: the protocol's order of things, and what it says of itself."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from coordinator.loadtest.figures import Figures
from coordinator.loadtest.light_device import LightDevice, Ways
from coordinator.loadtest.light_messages import AGENT_VERSION
from coordinator.loadtest.stand_in import NAME, Shelf, StandIn
from edge.contracts.envelope import seal
from edge.contracts.errors import DeviceRefused
from edge.contracts.messages import Ack, Block, Grant
from edge.contracts.plan import BlobRef, Schedule, WorkOrder, assignment_id
from edge.contracts.tensor_file import decode_tensors, encode_tensors

WEIGHTS = encode_tensors(
    {
        "fc.weight": np.linspace(-1, 1, 60_000, dtype=np.float32).reshape(200, 300),
        "bn.running_var": np.full(4, 0.5, np.float32),
        "bn.num_batches_tracked": np.array(7, np.int64),
    }
)
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()
UPLOAD = ("bn.num_batches_tracked", "bn.running_var", "fc.weight")


class Wire:
    """Keeps what a device says; a cut is only counted."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []
        self.cuts = 0

    def send(self, kind: str, body: Any, *, qos: int, message_id: str | None = None) -> None:
        self.said.append((kind, body))

    def cut(self) -> None:
        self.cuts += 1

    def take(self, kind: str) -> list[Any]:
        """The bodies said as ``kind``, which are then forgotten with all others."""
        found = [body for said, body in self.said if said == kind]
        self.said.clear()
        return found


def order_for(device: str = "load-1", round_index: int = 0, **changes: Any) -> WorkOrder:
    values: dict[str, Any] = dict(
        assignment_id=assignment_id("load", round_index, device, 0), federation="load", device=device,
        round=round_index, attempt=0, artifact=BlobRef("0" * 64, 1),
        weights=BlobRef(DIGEST, len(WEIGHTS), "raw", len(WEIGHTS)), schedule=Schedule(epochs=1), batch=8,
        last_batch="wrap", data_seed=5, hyper={}, upload=UPLOAD,
    )  # fmt: skip
    return WorkOrder(**(values | changes))


class Bench:
    """One device with its wire."""

    def __init__(self, *, cuts: int = 0, shelf: Shelf | None = None) -> None:
        self.figures, self.wire = Figures(), Wire()
        self.training: list[LightDevice] = []
        ways = Ways("load", {"onnxruntime": "1.22"}, cuts=cuts)
        self.device = LightDevice("load-1", ways, shelf or Shelf(), self.figures, trains=self.training.append)
        self.device.link = self.wire

    def say(self, kind: str, body: Any, now: float = 1.0) -> None:
        self.device.receive(f"apportion/v1/load/dn/load-1/{kind}", seal(kind, body), now)

    def serve_weights(self) -> None:
        """Answer its requests until it has asked for everything."""
        while gets := self.wire.take("get"):
            for get in gets:
                data = WEIGHTS[get.offset : get.offset + get.length]
                self.say("block", Block(get.digest, get.offset, len(WEIGHTS), data))


def uploaded(bench: Bench) -> bytes:
    """Grant everything that is offered; the bytes that were sent."""
    (offer,) = bench.wire.take("offer")
    got = bytearray()
    while len(got) < offer.update.size:
        bench.say("grant", Grant(offer.assignment_id, offer.update.digest, len(got), 65_536, 2))
        puts = bench.wire.take("put")
        assert puts
        assert puts[0].offset == len(got)
        for put in puts:
            got += put.data
    assert hashlib.sha256(got).hexdigest() == offer.update.digest
    bench.say("grant", Grant(offer.assignment_id, offer.update.digest, len(got), 65_536, 2), now=1.5)
    return bytes(got)


def test_an_order_is_accepted_fetched_answered_reported_and_forgotten() -> None:
    bench = Bench()
    bench.say("order", order_for())
    assert [kind for kind, _ in bench.wire.said][:2] == ["accept", "get"]
    bench.serve_weights()
    assert bench.training == [bench.device]
    bench.device.train(1.0)
    update = decode_tensors(uploaded(bench), where="update")
    weights = decode_tensors(WEIGHTS, where="weights")
    assert set(update) == set(UPLOAD)
    assert update["bn.num_batches_tracked"] == 7
    ratio = update["fc.weight"][weights["fc.weight"] != 0] / weights["fc.weight"][weights["fc.weight"] != 0]
    assert 0.98 < ratio.min() < ratio.max() < 1.02
    (report,) = bench.wire.take("report")
    assert (report.runtime, report.steps, report.step_ms_p50, report.trainer_peak_bytes) == (NAME, 0, 0.0, 0)
    bench.say("ack", Ack(report.assignment_id, True), now=2.0)
    assert not bench.device.is_busy
    assert bench.figures.counts == {"orders": 1, "acks": 1}
    assert (bench.figures.payload_down, bench.figures.payload_up) == (len(WEIGHTS), report.update.size)
    assert bench.figures.trips_ms["report-ack"] == [500.0]


def test_a_repeated_order_is_accepted_again_and_a_settled_one_refused() -> None:
    bench = Bench()
    bench.say("order", order_for())
    bench.wire.said.clear()
    bench.say("order", order_for(), now=3.0)
    assert [kind for kind, _ in bench.wire.said] == ["accept"]
    bench.say("ack", Ack(order_for().assignment_id, False, "stale-round"))
    bench.wire.said.clear()
    bench.say("order", order_for(), now=4.0)
    (refusal,) = bench.wire.take("refuse")
    assert refusal.code == "replayed-order"


@pytest.mark.parametrize(
    "changes", [{"device": "load-2"}, {"federation": "other"}, {"assignment_id": "f" * 64}], ids=lambda c: next(iter(c))
)
def test_an_order_that_is_not_this_device_s_is_answered_with_an_error(changes: dict[str, Any]) -> None:
    bench = Bench()
    bench.say("order", order_for(**changes))
    (error,) = bench.wire.take("error")
    assert error.code == "bad-message"
    assert not bench.device.is_busy


def test_an_order_for_tensors_that_were_not_sent_is_refused() -> None:
    bench = Bench()
    bench.say("order", order_for(upload=("fc.weight#kept",)))
    bench.serve_weights()
    bench.device.train(1.0)
    (refusal,) = bench.wire.take("refuse")
    assert "fc.weight#kept" in refusal.reason
    assert not bench.device.is_busy


def test_what_is_not_answered_is_repeated() -> None:
    bench = Bench()
    bench.say("order", order_for())
    first = bench.wire.take("get")
    bench.device.tick(1.5)
    assert bench.wire.take("get") == []
    bench.device.tick(4.0)
    assert bench.wire.take("get") == first[:1]  # late, perhaps
    bench.device.tick(20.0)
    assert bench.wire.take("get") == first


def test_damaged_weights_are_fetched_again() -> None:
    bench = Bench()
    bench.say("order", order_for())
    for get in bench.wire.take("get"):
        bench.say("block", Block(get.digest, get.offset, len(WEIGHTS), bytes(get.length)))
    while not bench.figures.counts.get("corrupt downloads"):
        for get in bench.wire.take("get"):
            bench.say("block", Block(get.digest, get.offset, len(WEIGHTS), bytes(get.length)))
    bench.serve_weights()
    assert bench.training == [bench.device]


def test_links_are_cut_as_often_as_asked_in_each_direction() -> None:
    bench = Bench(cuts=3)
    bench.say("order", order_for())
    bench.serve_weights()
    downwards = bench.wire.cuts
    bench.device.train(1.0)
    uploaded(bench)
    # Blocks of 128 KiB: 240 kB come in two, so one quarter is passed; 64 KiB going up pass three.
    assert (downwards, bench.wire.cuts - downwards) == (1, 3)


def test_hello_says_that_it_is_a_load_device() -> None:
    bench = Bench()
    bench.device.hello()
    (hello,) = bench.wire.take("hello")
    assert (hello.agent_version, hello.profile.cpu_model) == (AGENT_VERSION, AGENT_VERSION)
    assert hello.profile.budget_bytes == 0
    assert hello.profile.step_lines == {}


def test_a_call_to_everyone_is_answered_later_than_one_to_the_device() -> None:
    bench = Bench()
    assert bench.device.receive("apportion/v1/load/dn/load-1/hello", seal("hello", {}), 1.0) == 0.0
    assert bench.device.receive("apportion/v1/load/all/hello", seal("hello", {}), 1.0) > 0.0


def test_a_probe_is_timed_and_one_that_is_lost_given_up() -> None:
    bench = Bench()
    bench.device.probe(1.0)
    bench.device.probe(2.0)
    (accept,) = bench.wire.take("accept")
    bench.say("ack", Ack(accept.assignment_id, False, "unknown-assignment"), now=1.25)
    assert bench.figures.trips_ms == {"probe": [250.0]}
    bench.device.probe(3.0)
    bench.device.probe(40.0)
    assert len(bench.wire.take("accept")) == 2
    assert bench.figures.counts == {"probes lost": 1}


def test_updates_are_the_same_again_and_of_no_two_devices_alike() -> None:
    stand_in = StandIn(WEIGHTS, UPLOAD)
    made = [stand_in.update(order_for(f"load-{number}")) for number in range(3)]
    assert stand_in.update(order_for("load-0")) == made[0]
    assert len(set(made)) == 3
    assert stand_in.update(order_for("load-0", 1)) != made[0]
    with pytest.raises(DeviceRefused, match="fc9"):
        StandIn(WEIGHTS, ("fc9",))


def test_the_shelf_keeps_few_blobs_and_knows_their_bytes() -> None:
    shelf = Shelf(most=1)
    assert shelf.agrees(DIGEST, 0, WEIGHTS[:9]) is None
    assert not shelf.keep(DIGEST, WEIGHTS[:-1])
    assert shelf.keep(DIGEST, WEIGHTS)
    assert shelf.agrees(DIGEST, 5, WEIGHTS[5:9]) is True
    assert shelf.agrees(DIGEST, 5, b"\0\0\0\0") is False
    other = hashlib.sha256(b"other").hexdigest()
    assert shelf.keep(other, b"other")
    assert DIGEST not in shelf

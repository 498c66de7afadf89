"""The base file of a language model on its way to a device: cut off, damaged, without room, another one.

The base travels as any blob that an order names; here it is eight megabytes beside a small graph that does not read it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from coordinator.brokers.opening import BrokerProcess
from edge.contracts.messages import Get
from edge.contracts.tensor_file import encode_tensors
from edge.transport.blocks import BLOCK_BYTES, WINDOW
from tests.edge.agent_bench import Bench
from tests.edge.test_agent_process import Process
from tests.edge.tiny_artifact import TinyJob, ref, sha, tiny_job
from tests.failing_disk import FailingDisk, failing
from tests.waiting import wait_until

BASE = encode_tensors({"base": np.frombuffer(np.random.default_rng(4).bytes(8_000_000), np.uint8)})


def with_base(job: TinyJob) -> TinyJob:
    """``job``, whose order names the base."""
    job.blobs[sha(BASE)] = BASE
    job.order = msgspec.structs.replace(job.order, constants=ref(BASE))
    return job


def partial_of(store: Path) -> Path:
    """What has arrived of the base."""
    return store / "partial" / f"{sha(BASE)}.raw"


@pytest.fixture
def process(broker: BrokerProcess, tmp_path: Path) -> Iterator[Process]:
    made = Process(broker, tmp_path)
    try:
        yield made
    finally:
        made.close()


def killed_in_the_middle(process: Process, job: TinyJob) -> list[int]:
    """The offsets that are asked for of the base: those of an agent killed with some of it, then those of the next."""
    asked: list[int] = []
    agent = process.start()

    def kill_once(get: Get) -> None:
        if get.digest != sha(BASE):
            return
        asked.append(get.offset)
        if len(asked) == 20:
            agent.send_signal(signal.SIGKILL)
            agent.wait()

    process.coordinator.blobs.update(job.blobs)
    process.coordinator.on_get = kill_once
    process.coordinator.order(job.order)
    wait_until(lambda: agent.poll() is not None, "the kill")
    return asked


@pytest.mark.broker
@pytest.mark.slow
def test_after_a_kill_the_base_is_asked_for_from_the_byte_where_it_stopped(process: Process) -> None:
    job = with_base(tiny_job())
    asked = killed_in_the_middle(process, job)
    held = partial_of(process.folder / "store").stat().st_size
    assert BLOCK_BYTES < held < len(BASE)
    process.start(hello=2)
    before = len(asked)
    process.coordinator.order(job.order)
    report = process.coordinator.wait_for("report")
    assert asked[before] == held, "the first byte that is not there"
    assert min(asked[before:]) == held
    assert len(asked) - before <= -(-(len(BASE) - held) // BLOCK_BYTES) + WINDOW
    assert len(BASE) - held <= report.bytes_down < len(BASE)
    assert (process.folder / "store" / "blobs" / sha(BASE)).read_bytes() == BASE


@pytest.mark.broker
@pytest.mark.slow
def test_a_part_that_the_disk_damaged_is_found_and_the_base_is_fetched_again(process: Process) -> None:
    job = with_base(tiny_job())
    asked = killed_in_the_middle(process, job)
    partial = partial_of(process.folder / "store")
    held = bytearray(partial.read_bytes())
    held[1000] ^= 1
    partial.write_bytes(held)
    process.start(hello=2)
    before = len(asked)
    process.coordinator.order(job.order)
    report = process.coordinator.wait_for("report")
    assert asked[before] == len(held)
    assert asked[before:].count(0) == 1, "once, when the whole had another digest"
    assert len(BASE) < report.bytes_down
    assert (process.folder / "store" / "blobs" / sha(BASE)).read_bytes() == BASE


def test_a_disk_that_fills_up_while_the_base_arrives_refuses_and_goes_on_there(bench: Bench) -> None:
    """The order is refused with its reason, and ordered again when there is room."""
    asked: list[int] = []
    bench.coordinator.on_get = lambda get: asked.append(get.offset) if get.digest == sha(BASE) else None
    agent = bench.agent()
    job = with_base(bench.publish())
    bench.coordinator.blobs.update(job.blobs)
    full = FailingDisk(bench.folder / "store", 9, times=1, only="write", seen=partial_of(bench.folder / "store").name)
    with failing(full):
        bench.coordinator.order(job.order)
        refusal = bench.coordinator.wait_for("refuse")
    assert refusal.code == "store-full"
    there = f"blob {sha(BASE)[:12]}, {8 * BLOCK_BYTES} of {len(BASE)} bytes are there and stay"
    assert f"{there} (No space left on device); free disk space" in refusal.reason
    assert full.failed
    assert agent.state == "idle"
    held, before = partial_of(bench.folder / "store").stat().st_size, len(asked)
    assert held == 8 * BLOCK_BYTES
    bench.coordinator.order(job.order)
    bench.coordinator.wait_for("report")
    assert asked[before] == held
    assert (bench.folder / "store" / "blobs" / sha(BASE)).read_bytes() == BASE


def test_a_base_that_has_no_room_is_refused_before_a_byte_of_it_comes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    try:
        agent = bench.agent(quota_bytes=4_000_000)
        job = with_base(bench.publish())
        bench.coordinator.blobs.update(job.blobs)
        bench.coordinator.order(job.order)
        refusal = bench.coordinator.wait_for("refuse")
        assert refusal.code == "store-full"
        assert f"{len(BASE)} bytes do not fit the quota of 4000000 bytes" in refusal.reason
        assert "raise --quota-mb" in refusal.reason
        assert all(get.digest != sha(BASE) for kind, get in bench.coordinator.seen if kind == "get")
        plain = bench.publish(round_index=1)
        bench.coordinator.order(plain.order)
        bench.coordinator.wait_for("report")
        assert agent.state in ("uploading", "idle")
    finally:
        bench.close()
    assert bench.failures == []


def test_a_base_whose_bytes_rotted_on_the_device_is_fetched_again(bench: Bench) -> None:
    bench.agent()
    job = with_base(bench.publish())
    bench.coordinator.blobs.update(job.blobs)
    bench.coordinator.order(job.order)
    bench.coordinator.wait_for("report")
    stored = bench.folder / "store" / "blobs" / sha(BASE)
    rotten = bytearray(BASE)
    rotten[-7] ^= 16
    stored.write_bytes(rotten)
    again = with_base(bench.publish(round_index=1))
    bench.coordinator.order(again.order)
    report = bench.coordinator.wait_for("report", where=lambda r: r.assignment_id == again.order.assignment_id)
    assert report.bytes_down >= len(BASE)
    assert stored.read_bytes() == BASE
    third = with_base(bench.publish(round_index=2))
    bench.coordinator.order(third.order)
    report = bench.coordinator.wait_for("report", where=lambda r: r.assignment_id == third.order.assignment_id)
    assert report.bytes_down == 0

"""An agent from hello to ack, and everything that may go wrong in between, against NumPy and by hand."""

from __future__ import annotations

import os
import signal
import sys

import msgspec
import numpy as np
import pytest
import zstandard

from edge.agent import Agent
from edge.contracts.envelope import MAX_MESSAGE_BYTES, encode_msgpack, seal
from edge.contracts.errors import ConfigError
from edge.contracts.messages import Ack
from edge.contracts.plan import BlobRef
from edge.contracts.tensor_file import decode_tensors
from edge.contracts.topics import down
from edge.training.batches import BatchOrder
from tests.edge.agent_bench import Bench
from tests.edge.tiny_artifact import TinyJob, numpy_training, sha
from tests.waiting import wait_until

LONG_STEPS = 60_000
"""About two seconds of the tiny graph: long enough to be interrupted."""


def finished(bench: Bench, job: TinyJob) -> dict[str, np.ndarray]:
    bench.coordinator.wait_for("report", where=lambda r: r.assignment_id == job.order.assignment_id)
    return decode_tensors(bench.coordinator.updates[job.order.assignment_id], where="test")


def expected(bench: Bench, job: TinyJob) -> tuple[dict[str, np.ndarray], list[float]]:
    plan = BatchOrder(len(bench.x), job.order.batch, job.order.last_batch, job.order.data_seed)
    return numpy_training(job, bench.x, bench.y, list(plan.batches(plan.total(job.order.schedule))))


def kill_trainer(agent: Agent, number: int = signal.SIGKILL) -> None:
    assert agent.trainer.pid is not None
    os.kill(agent.trainer.pid, number)


def test_agent_round_agrees_with_numpy(bench: Bench) -> None:
    bench.agent(budget_bytes=2**40)  # the supervisor is the whole test process
    job = bench.publish(epochs=3)
    bench.coordinator.order(job.order)
    tensors = finished(bench, job)
    reference, losses = expected(bench, job)
    assert tensors.keys() == {"fc.weight", "fc.bias"}
    for name, value in reference.items():
        np.testing.assert_allclose(tensors[name], value, atol=2e-6)
    report = bench.coordinator.reports[job.order.assignment_id]
    assert report.steps == len(losses) == 12
    assert report.loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert report.num_examples == 18
    assert 0 <= report.metrics["accuracy"] <= 1
    assert report.update.digest == sha(bench.coordinator.updates[job.order.assignment_id])
    assert report.trainer_peak_bytes > report.trainer_idle_bytes > 20_000_000
    # The supervisor is this process, which other tests may have loaded torch into; real processes are tested elsewhere.
    assert report.torch_loaded == ("torch" in sys.modules)
    assert not report.over_budget
    kinds = [k for k in bench.coordinator.kinds() if k not in ("heartbeat", "get", "put")]
    assert kinds == ["(connected)", "hello", "accept", "offer", "report"]


def test_agent_hello_names_data_and_runtime(bench: Bench) -> None:
    bench.agent(budget_bytes=150_000_000)
    hello = bench.coordinator.wait_for("hello")
    assert hello.num_examples == 18
    assert hello.data_error == ""
    assert hello.runtimes.keys() == {"onnxruntime"}
    assert hello.profile.budget_bytes == 150_000_000
    assert 20_000_000 < hello.profile.trainer_idle_bytes["onnxruntime"] < 200_000_000


def test_agent_over_budget_refuses_with_both_figures(bench: Bench) -> None:
    agent = bench.agent(budget_bytes=100_000_000)
    job = bench.publish(peak_bytes=100_000_001)
    bench.coordinator.order(job.order)
    refusal = bench.coordinator.wait_for("refuse")
    assert (refusal.code, refusal.needed_bytes, refusal.budget_bytes) == ("device-refused", 100_000_001, 100_000_000)
    assert "100000001" in refusal.reason
    assert agent.state == "idle"


def test_agent_without_planned_peak_estimates_from_manifest(bench: Bench) -> None:
    bench.agent(budget_bytes=400_000_000)
    job = bench.publish(peak_bytes=0, predicted_peak_bytes=400_000_000)
    bench.coordinator.order(job.order)
    refusal = bench.coordinator.wait_for("refuse")
    assert refusal.code == "device-refused"
    assert refusal.needed_bytes > 400_000_000


def test_agent_flipped_byte_in_artifact_is_fetched_again(bench: Bench) -> None:
    bench.agent()
    job = bench.publish()
    graph = next(d for d, b in job.blobs.items() if b"fc.weight#momentum" in b and b[:1] != b"{")
    good = job.blobs[graph]
    bench.coordinator.blobs[graph] = good[:100] + bytes([good[100] ^ 1]) + good[101:]
    asked = []

    def mend_after_first(get: object) -> None:
        if get.digest == graph:  # type: ignore[attr-defined]
            asked.append(get)
            if len(asked) == 2:
                bench.coordinator.blobs[graph] = good

    bench.coordinator.on_get = mend_after_first
    bench.coordinator.order(job.order)
    tensors = finished(bench, job)
    np.testing.assert_allclose(tensors["fc.weight"], expected(bench, job)[0]["fc.weight"], atol=2e-6)
    assert len(asked) == 2


def test_agent_artifact_corrupt_twice_refuses(bench: Bench) -> None:
    agent = bench.agent()
    job = bench.publish()
    digest = job.order.weights.digest
    bench.coordinator.blobs[digest] = job.blobs[digest][:-1] + b"\x7f"
    bench.coordinator.order(job.order)
    refusal = bench.coordinator.wait_for("refuse")
    assert refusal.code == "artifact-corrupt"
    assert digest[:12] in refusal.reason
    assert agent.state == "idle"
    assert not (bench.folder / "store" / "blobs" / digest).exists()


def test_agent_unknown_blob_refuses(bench: Bench) -> None:
    bench.agent()
    job = bench.publish()
    del bench.coordinator.blobs[job.order.weights.digest]
    bench.coordinator.order(job.order)
    assert bench.coordinator.wait_for("refuse").code == "unknown-blob"


@pytest.mark.slow
def test_agent_trainer_killed_once_gives_the_same_update(bench: Bench) -> None:
    agent = bench.agent()
    calm = bench.publish(steps=LONG_STEPS, round_index=0)
    bench.coordinator.order(calm.order)
    undisturbed = finished(bench, calm)
    killed = bench.publish(steps=LONG_STEPS, round_index=1)
    bench.coordinator.order(killed.order)
    bench.coordinator.wait_for(
        "heartbeat", where=lambda h: h.step > 0 and h.assignment_id == killed.order.assignment_id
    )
    kill_trainer(agent)
    tensors = finished(bench, killed)
    assert {n: a.tobytes() for n, a in tensors.items()} == {n: a.tobytes() for n, a in undisturbed.items()}
    assert "refuse" not in bench.coordinator.kinds()


def test_agent_trainer_killed_twice_is_reported_and_agent_lives_on(bench: Bench) -> None:
    agent = bench.agent()
    job = bench.publish(steps=2_000_000)
    bench.coordinator.order(job.order)
    wait_until(lambda: agent.state == "training")
    first = agent.trainer.pid
    kill_trainer(agent, signal.SIGSEGV)
    wait_until(lambda: agent.trainer.pid not in (None, first))
    kill_trainer(agent)
    refusal = bench.coordinator.wait_for("refuse")
    assert refusal.code == "trainer-crashed"
    assert "SIGKILL" in refusal.reason
    bench.coordinator.order(job.order)
    assert bench.coordinator.wait_for("refuse", count=2) == refusal
    other = bench.publish(round_index=1)
    bench.coordinator.order(other.order)
    assert finished(bench, other).keys() == {"fc.weight", "fc.bias"}


@pytest.mark.slow
def test_agent_repeated_order_trains_once(bench: Bench) -> None:
    bench.agent()
    job = bench.publish(steps=LONG_STEPS)
    for _ in range(3):
        bench.coordinator.order(job.order)
    finished(bench, job)
    kinds = bench.coordinator.kinds()
    assert kinds.count("accept") == 3
    assert kinds.count("report") == 1


def test_agent_same_assignment_id_other_weights_starts_over(bench: Bench) -> None:
    bench.agent()
    bench.coordinator.is_acking = False
    first, second = bench.publish(), bench.publish(weight_seed=5)
    assert first.order.assignment_id == second.order.assignment_id
    bench.coordinator.order(first.order)
    finished(bench, first)
    bench.coordinator.order(second.order)
    offers = [bench.coordinator.wait_for("offer", count=1).update.digest]
    bench.coordinator.wait_for("offer", where=lambda offer: offer.update.digest != offers[0])


def test_agent_newer_order_takes_the_place_of_older_work(bench: Bench) -> None:
    agent = bench.agent()
    old, new = bench.publish(steps=5_000_000), bench.publish(round_index=1)
    bench.coordinator.order(old.order)
    wait_until(lambda: agent.state == "training")
    bench.coordinator.order(new.order)
    finished(bench, new)
    assert old.order.assignment_id not in bench.coordinator.reports


def test_agent_deadline_drops_the_work(bench: Bench) -> None:
    agent = bench.agent()
    job = bench.publish(steps=5_000_000, deadline_s=0.8)
    bench.coordinator.order(job.order)
    refusal = bench.coordinator.wait_for("refuse")
    assert refusal.code == "deadline-expired"
    assert "training" in refusal.reason
    assert agent.state == "idle"
    assert list((bench.folder / "store" / "work").iterdir()) == []


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"\xc1garbage", "bad-message"),
        (b"", "bad-message"),
        (b"x" * (MAX_MESSAGE_BYTES + 1), "bad-message"),
        (encode_msgpack({"v": 9, "id": "a", "kind": "order", "sent_at": 0.0, "body": {}}), "unsupported-version"),
        (encode_msgpack({"v": 1, "id": "a", "kind": "order", "sent_at": 0.0, "body": {"round": "x"}}), "bad-message"),
    ],
    ids=["garbage", "empty", "oversized", "version", "body"],
)
def test_agent_unreadable_message_is_answered_and_ignored(bench: Bench, payload: bytes, code: str) -> None:
    agent = bench.agent()
    bench.broker.route(down("fed", "dev-1", "order"), payload, 1)
    assert bench.coordinator.wait_for("error").code == code
    assert agent.state == "idle"
    job = bench.publish()
    bench.coordinator.order(job.order)
    finished(bench, job)


def test_agent_unknown_kind_is_ignored(bench: Bench) -> None:
    bench.agent()
    bench.coordinator.send_bytes("dance", seal("dance", {"steps": 3}))
    job = bench.publish()
    bench.coordinator.order(job.order)
    finished(bench, job)
    assert "error" not in bench.coordinator.kinds()


def test_agent_order_for_another_device_is_an_error(bench: Bench) -> None:
    agent = bench.agent()
    job = bench.publish()
    bench.coordinator.order(msgspec.structs.replace(job.order, device="dev-2"))
    assert "dev-2" in bench.coordinator.wait_for("error").message
    assert agent.state == "idle"


def test_agent_corrupt_data_is_told_in_hello_and_refused_until_mended(bench: Bench) -> None:
    path = bench.data / "part.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[:200])
    bench.agent()
    hello = bench.coordinator.wait_for("hello")
    assert hello.num_examples == 0
    assert "part.npz" in hello.data_error
    job = bench.publish()
    path.write_bytes(whole)
    bench.coordinator.order(job.order)
    assert bench.coordinator.wait_for("refuse").code == "bad-data"
    assert bench.coordinator.wait_for("hello", count=2).num_examples == 18
    bench.coordinator.order(job.order)
    finished(bench, job)


def test_agent_rejected_report_is_forgotten(bench: Bench) -> None:
    agent = bench.agent()
    bench.coordinator.is_acking = False
    job = bench.publish()
    bench.coordinator.order(job.order)
    finished(bench, job)
    bench.coordinator.send("ack", Ack(job.order.assignment_id, False, "stale-round", "round is over"))
    wait_until(lambda: agent.state == "idle")
    assert list((bench.folder / "store" / "work").iterdir()) == []


def test_agent_restarted_after_training_does_not_train_again(bench: Bench) -> None:
    bench.agent()
    bench.coordinator.is_acking = False
    job = bench.publish()
    bench.coordinator.order(job.order)
    finished(bench, job)
    first = bench.coordinator.reports.pop(job.order.assignment_id)
    bench.stop()
    gets = bench.coordinator.kinds().count("get")
    bench.coordinator.is_acking = True
    agent = bench.agent(hello=2)
    assert bench.coordinator.wait_for("hello", count=2).state == "uploading"
    bench.coordinator.wait_for("report", count=2)
    wait_until(lambda: agent.state == "idle")
    assert bench.coordinator.reports[job.order.assignment_id] == first
    assert bench.coordinator.kinds().count("get") == gets


def test_agent_broker_away_while_fetching_and_uploading(bench: Bench) -> None:
    agent = bench.agent()
    job = bench.publish()
    bench.coordinator.is_serving = False
    bench.coordinator.order(job.order)
    bench.coordinator.wait_for("get")
    bench.broker.stop()
    bench.coordinator.is_serving = True
    bench.broker.start()
    bench.coordinator.is_acking = False
    tensors = finished(bench, job)
    bench.broker.stop()
    bench.coordinator.is_acking = True
    bench.broker.start()
    wait_until(lambda: agent.state == "idle")
    np.testing.assert_allclose(tensors["fc.bias"], expected(bench, job)[0]["fc.bias"], atol=2e-6)


@pytest.mark.slow
def test_agent_lost_blocks_are_asked_for_again(bench: Bench) -> None:
    bench.agent()
    job = bench.publish()
    lost: list[str] = []

    def drop(topic: str, payload: bytes, qos: int) -> bool:
        kind = topic.rsplit("/", 1)[-1]
        if qos == 0 and kind not in lost:
            lost.append(kind)
            return True
        return False

    bench.broker.drop = drop  # type: ignore[assignment]
    bench.coordinator.order(job.order)
    finished(bench, job)
    assert sorted(lost) == ["block", "get", "put"]


def test_agent_once_ends_after_the_first_ack(bench: Bench) -> None:
    bench.agent(once=True)
    job = bench.publish()
    bench.coordinator.order(job.order)
    finished(bench, job)
    assert bench.coordinator.wait_for("bye").reason == "done"


def test_agent_unknown_runtime_ends_with_its_reason(bench: Bench) -> None:
    bench.agent(runtime="nonesuch", hello=0)
    wait_until(lambda: bench.failures)
    assert "nonesuch" in str(bench.failures[0])
    assert isinstance(bench.failures[0], ConfigError)


def test_agent_zstd_both_ways(bench: Bench) -> None:
    bench.agent()
    job = bench.publish()
    weights = job.blobs[job.order.weights.digest]
    packed = zstandard.compress(weights)
    bench.coordinator.blobs[job.order.weights.digest] = packed
    encoded = BlobRef(job.order.weights.digest, len(weights), "zstd", len(packed))
    bench.coordinator.order(msgspec.structs.replace(job.order, weights=encoded, encoding="zstd"))
    report = bench.coordinator.wait_for("report")
    arrived = bench.coordinator.updates[job.order.assignment_id]
    assert (report.update.encoding, report.update.encoded_size) == ("zstd", len(arrived))
    plain = zstandard.ZstdDecompressor().decompressobj().decompress(arrived)
    assert sha(plain) == report.update.digest
    found = decode_tensors(plain, where="test")["fc.weight"]
    np.testing.assert_allclose(found, expected(bench, job)[0]["fc.weight"], atol=2e-6)


def test_agent_quota_too_small_refuses(bench: Bench) -> None:
    bench.agent(quota_bytes=1000)
    job = bench.publish()
    bench.coordinator.order(job.order)
    refusal = bench.coordinator.wait_for("refuse")
    assert refusal.code == "store-full"
    assert "1000" in refusal.reason

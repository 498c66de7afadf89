"""The trainer without Python beside the Python trainer: the same update to the bit, the same report."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import queue
import signal
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from edge.contracts.evaluation import HeldOut
from edge.contracts.fixed_sample import FixedSample
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import BlobRef, Schedule, Turn, WorkOrder
from edge.contracts.tensor_file import encode_tensors
from edge.flat_orders.order import flat_order
from edge.runtimes import runtime
from edge.runtimes.executorch.session import native_trainer
from edge.supervisor.native_trainer import UNABLE, NativeTrainer
from edge.supervisor.trainer_link import TrainerEnded, TrainerEvent, TrainerLink, TrainerSaid
from edge.supervisor.trainer_messages import Failed, Progress, Ready, Reply, Train, Trained, read_reply
from edge.trainer import Trainer
from edge.training.artifact_folder import MANIFEST_NAME, read_artifact_folder
from export.bundle import export_artifact
from export.gate_values import gate_values
from export.training_step import StepSpec
from tests.export.test_step import STEPS, module, step

pytestmark = pytest.mark.runtime

WAIT_S = 60.0
SAME = ("digest", "size", "encoded_size", "num_examples", "steps", "loss", "metrics", "threads", "labels", "evaluation")
"""What both trainers report alike; times and memory are their own."""


@dataclass(frozen=True)
class Job:
    """An artifact, weights and examples for it."""

    folder: Path
    manifest: ArtifactManifest
    paths: dict[str, Path]
    weights: Path
    data: Path

    def request(self, name: str = "update", **values: Any) -> Train:
        data = (self.folder / MANIFEST_NAME).read_bytes()
        order: dict[str, Any] = {
            "schedule": Schedule(epochs=2),
            "batch": 6,
            "last_batch": "drop",
            "data_seed": 5,
            "hyper": dict(self.manifest.self_test.hyper),
            "upload": tuple(s.name for s in self.manifest.specs("parameter", "buffer", "accumulator")),
            "report_labels": True,
            **values,
        }
        return Train(
            order=WorkOrder(
                assignment_id="a" * 64,
                federation="fed",
                device="dev-1",
                round=0,
                attempt=0,
                artifact=BlobRef(hashlib.sha256(data).hexdigest(), len(data)),
                weights=BlobRef("0" * 64, 0),
                **order,
            ),
            manifest=str(self.folder / MANIFEST_NAME),
            files={name: str(path) for name, path in self.paths.items()},
            weights=str(self.weights),
            data=str(self.data),
            update=str(self.weights.parent / name),
            threads=2 if values.get("threads") == 2 else 1,
            progress_s=0.0,
        )

    def with_input(self, folder: Path, **values: Any) -> Job:
        """The same graphs under a manifest whose input says something else of raw examples."""
        folder.mkdir()
        changed = msgspec.structs.replace(self.manifest, input=msgspec.structs.replace(self.manifest.input, **values))
        (folder / MANIFEST_NAME).write_bytes(changed.to_bytes())
        return dataclasses.replace(self, folder=folder, manifest=changed)


def without_batch_norm() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))


def job_of(folder: Path, spec: StepSpec, made: nn.Module | None = None) -> Job:
    export_artifact(made or module(), spec, folder / "artifact", runtime="executorch")
    manifest, paths = read_artifact_folder(folder / "artifact")
    values = gate_values(spec, manifest.tensors)
    sent = manifest.specs("parameter", "frozen", "buffer", "teacher", "grad_mask")
    (folder / "weights").write_bytes(encode_tensors({s.name: values[s.name] for s in sent}))
    draw = np.random.default_rng(0)
    (folder / "data").mkdir()
    for name, count in (("a", 9), ("b", 11)):
        x = draw.standard_normal((count, 3, 6, 6)).astype(np.float32)
        np.savez(folder / "data" / f"{name}.npz", x=x, y=draw.integers(0, 3, count))
    return Job(folder / "artifact", manifest, paths, folder / "weights", folder / "data")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return job_of(tmp_path_factory.mktemp("plain"), step())


@pytest.fixture(scope="module")
def program() -> str:
    path = native_trainer()
    assert path, "no trainer without Python was compiled"
    return path


def by_python(request: Train) -> list[Reply]:
    out = io.BytesIO()
    Trainer(runtime("executorch"), out).answer(request)
    out.seek(0)
    found = []
    while (reply := read_reply(out)) is not None:
        found.append(reply)
    return found


def by_native(program: str, flat: bytes) -> list[Reply]:
    with subprocess.Popen([program, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(struct.pack(">Q", len(flat)) + flat)
        child.stdin.flush()
        found: list[Reply] = []
        while not found or not isinstance(found[-1], Trained | Failed):
            reply = read_reply(child.stdout)
            assert reply is not None, f"it ended with status {child.wait()}"
            found.append(reply)
    assert child.returncode == 0  # its pipe was closed
    return found


def assert_same(program: str, job: Job, **values: Any) -> Trained:
    first, second = job.request("by-python", **values), job.request("by-native", **values)
    expected, found = by_python(first), by_native(program, flat_order(second, job.manifest))
    assert isinstance(expected[-1], Trained), expected[-1]
    assert isinstance(found[-1], Trained), found[-1]
    assert Path(second.update).read_bytes() == Path(first.update).read_bytes()
    assert hashlib.sha256(Path(second.update).read_bytes()).hexdigest() == found[-1].digest
    for name in SAME:
        assert getattr(found[-1], name) == getattr(expected[-1], name), name
    assert repr(found[:-1]) == repr(expected[:-1])  # every step's loss, which may be no number
    assert 0 < found[-1].peak_bytes < 16 << 20
    return found[-1]


@pytest.mark.parametrize("last_batch", ["drop", "keep", "wrap"])
def test_update_is_the_same_bits_whatever_becomes_of_the_last_batch(program: str, plain: Job, last_batch: str) -> None:
    done = assert_same(program, plain, last_batch=last_batch)
    assert (done.num_examples, done.labels) == (20, (0, 1, 2))


def test_update_is_the_same_bits_of_fewer_examples_than_a_batch(program: str, plain: Job, tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", x=np.ones((2, 3, 6, 6)), y=np.array([[1], [3]], np.int32))
    few = dataclasses.replace(plain, data=tmp_path / "few.npz")
    assert assert_same(program, few, schedule=Schedule(steps=3)).labels == (1, 3)


def test_update_is_the_same_bits_on_two_threads_and_with_a_share_held_out(program: str, plain: Job) -> None:
    rule = HeldOut(share=0.3, seed=2**63 + 5, least=5, program="eval")
    done = assert_same(program, plain, threads=2, held_out=rule)
    assert done.evaluation is not None
    assert (done.evaluation.examples, done.num_examples) == (6, 14)
    rule = msgspec.structs.replace(rule, least=8)
    assert not assert_same(program, plain, held_out=rule, schedule=Schedule(turns=())).evaluation.sums  # type: ignore[union-attr]


@pytest.mark.parametrize(("size", "trained"), [(7, 7), (20, 20), (21, 20)])
def test_update_is_the_same_bits_of_a_fixed_sample(program: str, plain: Job, size: int, trained: int) -> None:
    sample = FixedSample(size=size, seed=2**64 - 3)
    done = assert_same(program, plain, sample=sample)
    assert (done.num_examples, done.steps) == (trained, 2 * (trained // 6))
    whole = assert_same(program, plain, schedule=Schedule(steps=done.steps))
    assert (done.digest == whole.digest) == (trained == 20)


def test_fixed_sample_is_of_what_is_not_held_out(program: str, plain: Job) -> None:
    rule = HeldOut(share=0.3, seed=2**63 + 5, least=5, program="eval")
    done = assert_same(program, plain, held_out=rule, sample=FixedSample(size=9, seed=1), last_batch="wrap")
    assert done.evaluation is not None
    assert (done.evaluation.examples, done.num_examples, done.steps) == (6, 9, 4)


def test_update_is_the_same_bits_of_augmented_bytes_with_channels_last(
    program: str, plain: Job, tmp_path: Path
) -> None:
    draw = np.random.default_rng(1)
    x = draw.integers(0, 256, (20, 6, 6, 3), dtype=np.uint8)
    np.savez(tmp_path / "bytes.npz", x=x, y=draw.integers(0, 4, 20).astype(np.uint8))
    job = dataclasses.replace(plain, data=tmp_path / "bytes.npz")
    spec: dict[str, Any] = {"scale": 1 / 255, "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.25, 0.3)}
    assert_same(program, job.with_input(tmp_path / "both", augment=("flip", "crop4"), **spec))
    assert_same(program, job.with_input(tmp_path / "flip", augment=("flip",), mean=(0.1,), std=(2.0,)))
    assert_same(program, job.with_input(tmp_path / "crop", augment=("crop2",), **spec))


def test_statistics_are_the_same_bits(program: str, plain: Job) -> None:
    buffers = tuple(s.name for s in plain.manifest.specs("buffer"))
    assert_same(program, plain, schedule=Schedule(epochs=1, turns=(Turn("stats"),)), upload=buffers)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd-nesterov", "clip-adam", "everything", "proximal-everything", "groups-adamw"])
def test_update_is_the_same_bits_for_every_kind_of_step(program: str, name: str, tmp_path: Path) -> None:
    assert_same(program, job_of(tmp_path, step(**STEPS[name])), last_batch="wrap")


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [
        {"micro_batches": 3},
        {"recompute": True},
        {"micro_batches": 2, "recompute": True},
        {"micro_batches": 2, "kept_activations": "float16"},
    ],
)
def test_update_is_the_same_bits_in_every_form(program: str, form: dict[str, Any], tmp_path: Path) -> None:
    assert_same(program, job_of(tmp_path, step(**form, clip_norm=True), without_batch_norm()))


@pytest.mark.parametrize("damage", ["label", "value", "weights", "program"])
def test_what_only_the_python_trainer_can_tell_is_left_to_it(
    program: str, plain: Job, damage: str, tmp_path: Path
) -> None:
    x, y = np.zeros((8, 3, 6, 6), np.float32), np.zeros(8, np.int64)
    if damage == "label":
        y[5] = 4
    elif damage == "value":
        x[7, 0, 0, 0] = np.nan
    np.savez(tmp_path / "data.npz", x=x, y=y)
    request = dataclasses.replace(plain, data=tmp_path / "data.npz").request()
    if damage == "program":
        (tmp_path / "train.pte").write_bytes(plain.paths["train.pte"].read_bytes()[:-1])
        request = msgspec.structs.replace(request, files={**request.files, "train.pte": str(tmp_path / "train.pte")})
    flat = flat_order(request, plain.manifest)
    if damage == "weights":
        flat = flat.replace(request.weights.encode(), request.weights.encode()[:-1] + b"~")
    reply = by_native(program, flat)[-1]
    assert isinstance(reply, Failed)
    assert reply.code == UNABLE


def test_orders_that_are_cut_short_end_nothing(program: str, plain: Job) -> None:
    flat = flat_order(plain.request(), plain.manifest)
    for length in (0, 7, 100, len(flat) // 2, len(flat) - 1):
        reply = by_native(program, flat[:length])[-1]
        assert isinstance(reply, Failed)
        assert reply.code == UNABLE


@dataclass
class Supervised:
    link: TrainerLink
    events: queue.SimpleQueue[TrainerEvent]

    def await_reply(self, kind: type) -> Any:
        while True:
            event = self.events.get(timeout=WAIT_S)
            assert isinstance(event, TrainerSaid), event
            if isinstance(event.reply, kind):
                return event.reply


@pytest.fixture
def supervised(program: str, plain: Job) -> Iterator[Supervised]:
    events: queue.SimpleQueue[TrainerEvent] = queue.SimpleQueue()
    link = TrainerLink(python="/no/such/python", runtime="executorch", deliver=events.put)
    link.native.told(Ready("executorch", plain.manifest.minimum_runtime_version, 1, native=program))
    yield Supervised(link, events)
    link.kill()


def test_killed_in_the_middle_it_is_told_and_the_order_begins_anew(supervised: Supervised, plain: Job) -> None:
    link, request = supervised.link, plain.request("killed", schedule=Schedule(steps=100_000))
    link.train(request, plain.manifest)
    supervised.await_reply(Progress)
    assert link.is_native
    assert link.pid is not None
    os.kill(link.pid, signal.SIGKILL)
    while isinstance(ended := supervised.events.get(timeout=WAIT_S), TrainerSaid):
        pass
    assert isinstance(ended, TrainerEnded)
    assert (ended.signal, ended.peak_bytes > 1 << 20) == (signal.SIGKILL, True)
    assert not Path(request.update).exists()
    again = plain.request("again")
    link.train(again, plain.manifest)
    first = supervised.await_reply(Trained)
    pid = link.pid
    link.train(plain.request("more"), plain.manifest)  # the same child
    assert (supervised.await_reply(Trained).digest, link.pid) == (first.digest, pid)
    expected = by_python(plain.request("expected"))[-1]
    assert isinstance(expected, Trained)
    assert first.digest == expected.digest


def test_it_ends_when_its_supervisor_closes_the_pipe(supervised: Supervised, plain: Job) -> None:
    supervised.link.train(plain.request("left", schedule=Schedule(steps=100_000)), plain.manifest)
    supervised.await_reply(Progress)
    pid = supervised.link.pid
    supervised.link.end()
    with pytest.raises(ProcessLookupError):
        os.kill(pid or 0, 0)


def test_it_weighs_little_before_any_order(program: str, plain: Job) -> None:
    native = NativeTrainer()
    native.path = program
    assert 1 << 20 < native.idle_bytes(str(plain.data)) < 12 << 20
    assert native.idle_bytes("package.module:function") == 0

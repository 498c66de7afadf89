"""An agent whose trainer runs ExecuTorch: a round, refusals by reason, a native crash that ends the trainer only."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge.contracts.errors import DeviceRefused
from edge.contracts.manifest import ArtifactFile, ArtifactManifest
from edge.contracts.plan import BlobRef, Precision, Schedule, WorkOrder, assignment_id
from edge.contracts.tensor_file import encode_tensors
from edge.runtimes.executorch.library import library
from edge.runtimes.executorch.session import native_trainer
from edge.supervisor.presence import USUAL
from edge.supervisor.trainer_link import child_environment
from edge.training.artifact_folder import MANIFEST_NAME, read_artifact_folder
from tests.edge.agent_bench import Bench

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

CRASHES = {"SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"}

SEARCH = """
import os, signal, sys
from pathlib import Path
import numpy as np
from edge.training.artifact_folder import read_artifact_folder
from edge.runtimes.executorch.session import ExecutorchSession
from edge.training.self_test import self_test_losses
manifest, files = read_artifact_folder(Path(sys.argv[1]))
data, changed = files["train.pte"].read_bytes(), Path(sys.argv[2])
for offset in range(len(data) // 8, len(data), 7):
    changed.write_bytes(data[:offset] + bytes([data[offset] ^ 255]) + data[offset + 1 :])
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.alarm(5)
        try:
            session = ExecutorchSession(manifest.programs, manifest.tensors, {**files, "train.pte": changed}, batch=6)
            self_test_losses(session, manifest, steps=1)
        finally:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGALRM:
        print(signal.Signals(os.WTERMSIG(status)).name)
        break
"""


@dataclass
class Exported:
    """A small artifact and everything an order of it needs."""

    folder: Path
    manifest: ArtifactManifest
    files: dict[str, bytes]
    weights: bytes

    def order(
        self,
        bench: Bench,
        round_index: int,
        *,
        manifest: ArtifactManifest | None = None,
        batch: int = 6,
        precision: Precision = "fp32",
        steps: int = 0,
    ) -> str:
        """Serve the blobs and send an order; its assignment id."""
        described = (manifest or self.manifest).to_bytes()
        served = [described, self.weights, *self.files.values()]
        bench.coordinator.blobs.update({hashlib.sha256(blob).hexdigest(): blob for blob in served})
        identity = assignment_id("fed", round_index, "dev-1", 0)
        bench.coordinator.order(
            WorkOrder(
                assignment_id=identity,
                federation="fed",
                device="dev-1",
                round=round_index,
                attempt=0,
                artifact=reference(described),
                weights=reference(self.weights),
                schedule=Schedule(steps=steps) if steps else Schedule(epochs=1),
                batch=batch,
                last_batch="drop",
                data_seed=1,
                hyper={"lr": 0.05, "momentum": 0.9, "weight_decay": 0.0},
                upload=tuple(s.name for s in self.manifest.specs("parameter")),
                threads=4,
                precision=precision,
            )
        )
        return identity

    def with_program(self, data: bytes) -> ArtifactManifest:
        """A manifest of the same artifact with another training program, its digest right; the file is served too."""
        self.files["changed"] = data
        changed = ArtifactFile("train.pte", hashlib.sha256(data).hexdigest(), len(data))
        files = tuple(changed if f.name == "train.pte" else f for f in self.manifest.files)
        return msgspec.structs.replace(self.manifest, files=files)


def reference(data: bytes) -> BlobRef:
    return BlobRef(hashlib.sha256(data).hexdigest(), len(data), "raw", len(data))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    try:
        library()
    except DeviceRefused as error:
        pytest.skip(str(error))
    pytest.importorskip("ruamel.yaml", reason="the executorch exporter imports ruamel.yaml: make setup")
    from export.bundle import export_artifact
    from tests.export.test_step import module, step

    folder = tmp_path_factory.mktemp("executorch") / "artifact"
    built = module()
    export_artifact(built, step(), folder, runtime="executorch")
    manifest, paths = read_artifact_folder(folder)
    state = {n: v.numpy() for n, v in built.state_dict().items() if v.is_floating_point()}
    files = {name: path.read_bytes() for name, path in paths.items() if name != MANIFEST_NAME}
    return Exported(folder, manifest, files, encode_tensors(state))


@pytest.fixture
def images(tmp_path: Path) -> str:
    folder = tmp_path / "images"
    folder.mkdir()
    generator = np.random.default_rng(0)
    x = generator.standard_normal((18, 3, 6, 6)).astype(np.float32)
    np.savez(folder / "part.npz", x=x, y=generator.integers(0, 4, 18))
    return str(folder)


def test_executorch_agent_trains_a_round_on_the_threads_ordered(bench: Bench, exported: Exported, images: str) -> None:
    library()  # compiled, and the trainer beside it
    assert native_trainer()
    agent = bench.agent(runtime="executorch", data=images)
    assert agent.trainer.pid is None  # it has said hello without a Python trainer
    identity = exported.order(bench, 0)
    report = bench.coordinator.wait_for("report", where=lambda r: r.assignment_id == identity)
    assert (report.runtime, report.steps, report.threads) == ("executorch", 3, 4)
    profile = bench.coordinator.wait_for("hello").profile
    assert profile.max_threads == {}
    assert profile.sources["trainer_idle_bytes"] == USUAL
    assert profile.sparse_below["executorch"].keys() == {"linear", "convolution"}
    assert 0 < profile.native_idle_bytes["executorch"] < profile.trainer_idle_bytes["executorch"] / 2
    assert report.trainer_kind == "native"
    assert report.trainer_peak_bytes < profile.trainer_idle_bytes["executorch"]
    assert np.isfinite(report.loss)
    trainer = Path(f"/proc/{agent.trainer.pid}/maps").read_text()
    assert "libexecutorch.so" in trainer
    others = ("python", "libtorch", "libc10", "onnxruntime", "numpy")
    assert not [line for line in trainer.splitlines() if any(name in line.rpartition("/")[2] for name in others)]
    # What only the Python trainer does comes from it, the same as ever.
    coded = exported.order(bench, 1, precision="int8")
    report = bench.coordinator.wait_for("report", where=lambda r: r.assignment_id == coded)
    assert report.trainer_kind == "python"
    assert agent.trainer.native.reason == "its update is sent as int8"
    # It has been started for that, and what it weighs is now a measurement, near what is usual.
    measured = bench.coordinator.wait_for("hello", count=2).profile
    assert "trainer_idle_bytes" not in measured.sources
    assert 0.8 < measured.trainer_idle_bytes["executorch"] / profile.trainer_idle_bytes["executorch"] < 1.2


def test_executorch_agent_whose_trainer_is_killed_gives_the_bits_of_one_that_is_not(
    bench: Bench, exported: Exported, images: str
) -> None:
    agent = bench.agent(runtime="executorch", data=images)
    steps, updates = 3000, []
    for number, trainer in enumerate(("killed", "native", "python")):
        if trainer == "python":
            agent.trainer.native.path = ""
        identity = exported.order(bench, number, steps=steps)
        if trainer == "killed":
            bench.coordinator.wait_for("heartbeat", where=lambda beat: 0 < beat.step < steps)
            assert agent.trainer.is_native
            assert agent.trainer.pid is not None
            os.kill(agent.trainer.pid, signal.SIGKILL)
        report = bench.coordinator.wait_for("report", where=lambda r, done=identity: r.assignment_id == done)
        assert report.trainer_kind == ("python" if trainer == "python" else "native")
        updates.append(report.update.digest)
    assert len(set(updates)) == 1
    assert bench.failures == []


def test_executorch_agent_refuses_by_reason_and_goes_on(bench: Bench, exported: Exported, images: str) -> None:
    bench.agent(runtime="executorch", data=images)
    newer = msgspec.structs.replace(exported.manifest, minimum_runtime_version="1.6.0")
    train = exported.files["train.pte"]
    unknown = train.replace(b"apportion_native::batch_norm_backward", b"apportion_native::batch_norm_backwarx")
    exported.order(bench, 0, manifest=newer)
    assert "1.6.0" in bench.coordinator.wait_for("refuse").reason
    exported.order(bench, 1, manifest=exported.with_program(unknown))
    assert "OperatorMissing" in bench.coordinator.wait_for("refuse", count=2).reason
    exported.order(bench, 2, manifest=exported.with_program(train[: len(train) // 2]))
    assert "cannot load" in bench.coordinator.wait_for("refuse", count=3).reason
    exported.order(bench, 3, batch=9)
    assert "batches of 1 to 6, this one has 9" in bench.coordinator.wait_for("refuse", count=4).reason
    identity = exported.order(bench, 4)
    bench.coordinator.wait_for("report", where=lambda r: r.assignment_id == identity)


def test_executorch_agent_survives_a_native_crash(
    bench: Bench, exported: Exported, images: str, tmp_path: Path
) -> None:
    changed = tmp_path / "changed.pte"
    found = subprocess.run(
        [sys.executable, "-c", SEARCH, str(exported.folder), str(changed)],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() in CRASHES  # a program that passes the runtime's checks and kills its process
    bench.agent(runtime="executorch", data=images)
    exported.order(bench, 0, manifest=exported.with_program(changed.read_bytes()))
    refusal = bench.coordinator.wait_for("refuse")
    assert refusal.code == "trainer-crashed"
    assert any(name in refusal.reason for name in CRASHES)
    identity = exported.order(bench, 1)
    bench.coordinator.wait_for("report", where=lambda r: r.assignment_id == identity)
    assert bench.failures == []

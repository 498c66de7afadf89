"""ONNX Runtime sessions: two buffers that never alias, state in and out, refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge.contracts.errors import ArtifactCorrupt, ConfigError, DeviceRefused, PlanError
from edge.contracts.manifest import ArtifactManifest
from edge.runtimes import RUNTIMES, runtime
from edge.runtimes.base import Session
from edge.supervisor.trainer_link import child_environment
from edge.training.self_test import check_self_test, self_test_losses
from tests.edge.tiny_artifact import BATCH, CLASSES, FEATURES, numpy_training, softmax_graph, softmax_manifest, tiny_job

pytestmark = pytest.mark.runtime


@pytest.fixture
def manifest() -> ArtifactManifest:
    return ArtifactManifest.from_bytes(softmax_manifest(softmax_graph()))


@pytest.fixture
def session(tmp_path: Path, manifest: ArtifactManifest) -> Session:
    (tmp_path / "train.onnx").write_bytes(softmax_graph())
    return runtime("onnxruntime").load(manifest, {"train.onnx": tmp_path / "train.onnx"}, threads=1)


def feeds(x: np.ndarray, y: np.ndarray, mask: np.ndarray, lr: float = 0.1) -> Mapping[str, np.ndarray]:
    return {
        "input": x.astype(np.float32),
        "target": y.astype(np.int64),
        "label_mask": mask.astype(np.float32),
        "lr": np.array(lr, np.float32),
        "momentum": np.array(0.9, np.float32),
    }


def test_session_steps_agree_with_numpy_over_both_buffers(session: Session) -> None:
    job, rng = tiny_job(), np.random.default_rng(5)
    x, y = rng.normal(size=(20, FEATURES)), rng.integers(0, CLASSES, 20)
    batches = [np.arange(i, i + BATCH) % 20 for i in range(0, 28, BATCH)]
    reference, losses = numpy_training(job, x.astype(np.float32), y, batches)
    for _ in range(2):  # the second time from buffers that hold the first run's end
        session.load_state(job.weights)
        found = [session.run("train", feeds(x[b], y[b], np.ones(CLASSES)))["loss"] for b in batches]
        assert found == pytest.approx(losses, rel=1e-5)
        for name, value in reference.items():
            np.testing.assert_allclose(session.read(name), value, atol=2e-6)


def test_session_gives_integer_metrics_as_numbers(session: Session) -> None:
    session.load_state(tiny_job().weights)
    values = session.run("train", feeds(np.zeros((BATCH, FEATURES)), np.zeros(BATCH), np.ones(CLASSES), lr=0.0))
    assert values == {"loss": pytest.approx(np.log(3), rel=1e-6), "correct": 4.0}


def test_session_takes_any_batch_size(session: Session) -> None:
    session.load_state(tiny_job().weights)
    for size in (1, 7, 2):
        assert np.isfinite(session.run("train", feeds(np.ones((size, FEATURES)), np.zeros(size), np.ones(3)))["loss"])


def test_session_slots_not_sent_start_at_zero_and_sent_ones_do_not(session: Session) -> None:
    weights = tiny_job().weights
    session.load_state(weights)
    session.run("train", feeds(np.ones((2, FEATURES)), np.zeros(2), np.ones(3)))
    assert np.abs(session.read("fc.bias#momentum")).max() > 0
    session.load_state(weights | {"fc.weight#momentum": np.full((FEATURES, CLASSES), 2.0, np.float32)})
    assert session.read("fc.bias#momentum").tolist() == [0.0, 0.0, 0.0]
    assert session.read("fc.weight#momentum").min() == 2.0


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"fc.weight": np.zeros((FEATURES, CLASSES), np.float32)}, "fc.bias"),
        ({"fc.weight": np.zeros((2, 2), np.float32), "fc.bias": np.zeros(3, np.float32)}, r"\[2, 2\]"),
        ({"fc.weight": np.zeros((FEATURES, CLASSES)), "fc.bias": np.zeros(3, np.float32)}, "float64"),
    ],
    ids=["missing", "shape", "dtype"],
)
def test_session_weights_that_do_not_fit_are_refused(
    session: Session, weights: dict[str, np.ndarray], words: str
) -> None:
    with pytest.raises(ArtifactCorrupt, match=words):
        session.load_state(weights)


def test_session_unknown_program_and_tensor_are_named(session: Session) -> None:
    with pytest.raises(PlanError, match="has no program 'dance', it has train"):
        session.run("dance", {})
    with pytest.raises(DeviceRefused, match=r"nonesuch.*fc\.weight"):
        session.read("nonesuch")


def test_session_wrong_feed_shape_is_refused_with_the_program(session: Session) -> None:
    session.load_state(tiny_job().weights)
    with pytest.raises(DeviceRefused, match="program 'train' failed"):
        session.run("train", feeds(np.zeros((2, FEATURES + 1)), np.zeros(2), np.ones(3)))


def test_session_graph_that_is_no_graph_is_refused(tmp_path: Path, manifest: ArtifactManifest) -> None:
    (tmp_path / "train.onnx").write_bytes(b"not a graph")
    made = runtime("onnxruntime").load(manifest, {"train.onnx": tmp_path / "train.onnx"}, threads=1)
    made.load_state(tiny_job().weights)
    with pytest.raises(DeviceRefused, match=r"cannot load train\.onnx"):
        made.run("train", {})


STARTED = """
import sys
from pathlib import Path
import numpy as np
import edge.trainer
from edge.contracts.manifest import ArtifactManifest
from edge.runtimes import runtime
from edge.system.meter import peak_rss_bytes, rss_bytes
loads = runtime("onnxruntime")
loads.version()
idle = rss_bytes()
folder = Path(sys.argv[1])
manifest = ArtifactManifest.from_bytes((folder / "manifest.json").read_bytes())
session = loads.load(manifest, {"train.onnx": folder / "train.onnx"}, threads=1)
session.load_state({name: np.load(folder / f"{name}.npy") for name in ("fc.weight", "fc.bias")})
session.run("train", dict(np.load(folder / "feeds.npz")))
print(peak_rss_bytes() - idle)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what a process weighs is read from Linux's /proc")
def test_starting_a_session_takes_no_peak_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(softmax_manifest(softmax_graph()))
    (tmp_path / "train.onnx").write_bytes(softmax_graph())
    for name, value in tiny_job().weights.items():
        np.save(tmp_path / f"{name}.npy", value)
    x, y = np.ones((BATCH, FEATURES)), np.zeros(BATCH)
    np.savez(tmp_path / "feeds.npz", **feeds(x, y, np.ones(CLASSES)))
    command = [sys.executable, "-c", STARTED, str(tmp_path)]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=True)
    # Without giving back what importing needed: 10.4 MB (measured, x86-64, onnxruntime 1.32).
    assert int(done.stdout) < 4 << 20


def test_session_newer_minimum_version_is_refused(manifest: ArtifactManifest) -> None:
    newer = msgspec.structs.replace(manifest, minimum_runtime_version="99.0.0")
    with pytest.raises(DeviceRefused, match=r"99\.0\.0"):
        runtime("onnxruntime").load(newer, {}, threads=1)


def test_self_test_compares_the_first_loss(session: Session, manifest: ArtifactManifest) -> None:
    (loss,) = self_test_losses(session, manifest, steps=1)
    good = msgspec.structs.replace(manifest.self_test, losses=(loss,))
    check_self_test(session, msgspec.structs.replace(manifest, self_test=good))
    bad = msgspec.structs.replace(manifest.self_test, losses=(loss * 1.001,))
    with pytest.raises(DeviceRefused, match="self-test"):
        check_self_test(session, msgspec.structs.replace(manifest, self_test=bad))


def test_runtime_unknown_name_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"nonesuch.*onnxruntime"):
        runtime("nonesuch")


def test_runtime_names_are_those_of_their_modules() -> None:
    for name in set(RUNTIMES) - {"onnxruntime_training"}:  # it has an environment of its own
        assert name == runtime(name).NAME

"""Artifacts for executorch: every kind of step and layer passes the gate; the device runs them without torch."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from pathlib import Path

import msgspec
import numpy as np
import pytest
from torch import nn

from edge.contracts.errors import ArtifactCorrupt, DeviceRefused, ExportRefused, PlanError
from edge.contracts.manifest import ArtifactManifest
from edge.runtimes import runtime
from edge.runtimes.base import Session
from edge.runtimes.executorch.build import session_library
from edge.runtimes.executorch.session import ExecutorchSession
from edge.training.artifact_folder import read_artifact_folder
from edge.training.self_test import check_self_test
from export.bundle import export_artifact, verify_artifact
from export.gate_values import gate_values
from export.parity import STEPS as GATE_STEPS
from export.training_step import StepSpec
from tests.export.modules import CLASSES, IMAGE, Head, with_head
from tests.export.test_step import STEPS, TOGETHER, module, step

pytestmark = pytest.mark.runtime
LAYERS = (
    "conv2d-grouped", "conv2d-depthwise", "conv1d", "max_pool-overlapping", "avg_pool-valid", "batch_norm1d",
    "group_norm", "layer_norm", "prelu", "embedding-padding", "pad", "multihead_attention", "lstm-bidirectional", "gru",
)  # fmt: skip
"""Beside those whose export ``test_layer_support.py`` compares with what is said of them."""
Artifact = tuple[ArtifactManifest, dict[str, Path]]


@pytest.mark.slow
@pytest.mark.parametrize("name", TOGETHER)
def test_step_on_executorch_agrees_with_torch(name: str, tmp_path: Path) -> None:
    manifest = export_artifact(module(), step(**STEPS[name]), tmp_path / "artifact", runtime="executorch")
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_layer_family_on_executorch_passes_the_gate(name: str, tmp_path: Path) -> None:
    layers, spec = with_head(name)
    manifest = export_artifact(
        layers, StepSpec(input=spec, classes=CLASSES, batch=6), tmp_path / "artifact", runtime="executorch"
    )
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance < 0.05


@pytest.mark.slow
def test_layer_without_kernel_is_refused_by_name(tmp_path: Path) -> None:
    layers = Head(nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveMaxPool2d((3, 5))), IMAGE)
    spec = StepSpec(input=IMAGE, classes=CLASSES, batch=6)
    with pytest.raises(ExportRefused, match=r"body\.1.*adaptive_max_pool2d.*use .*divides the input"):
        export_artifact(layers, spec, tmp_path / "artifact", runtime="executorch")
    assert not (tmp_path / "artifact").exists()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("executorch") / "artifact"
    export_artifact(module(), step(), folder, runtime="executorch")
    assert verify_artifact(folder, module()).steps == GATE_STEPS
    return read_artifact_folder(folder)


def session_of(artifact: Artifact) -> Session:
    manifest, files = artifact
    session = runtime("executorch").load(manifest, files, threads=1)
    state = gate_values(step(), manifest.tensors)
    session.load_state({t.name: state[t.name] for t in manifest.specs("parameter", "frozen", "buffer")})
    return session


def unchecked_session(artifact: Artifact, train: Path) -> Session:
    """A session with another file for its training program, whose digest is not looked at."""
    manifest, files = artifact
    session = ExecutorchSession(manifest.programs, manifest.tensors, {**files, "train.pte": train}, batch=6)
    state = gate_values(step(), manifest.tensors)
    session.load_state({t.name: state[t.name] for t in manifest.specs("parameter", "buffer")})
    return session


def batch_of(artifact: Artifact, count: int) -> dict[str, np.ndarray]:
    manifest, _ = artifact
    values = gate_values(step(), manifest.tensors)
    values["input"], values["target"] = np.zeros((count, 3, 6, 6), np.float32), np.zeros(count, np.int64)
    return {name: values[name] for name in manifest.program("train").inputs}


@pytest.mark.slow
def test_self_test_passes_on_the_device_and_fails_on_other_losses(artifact: Artifact) -> None:
    manifest, files = artifact
    session = runtime("executorch").load(manifest, files, threads=1)
    assert check_self_test(session, manifest, steps=3) < 1e-5
    other = msgspec.structs.replace(manifest.self_test, losses=(9.0,))
    with pytest.raises(DeviceRefused, match="self-test"):
        check_self_test(session, msgspec.structs.replace(manifest, self_test=other))


def test_every_batch_up_to_the_planned_one_runs(artifact: Artifact) -> None:
    session = session_of(artifact)
    for count in (6, 1, 4, 6):
        assert np.isfinite(session.run("train", batch_of(artifact, count))["loss"])
    for count in (7, 0):
        with pytest.raises(DeviceRefused, match=f"batches of 1 to 6, this one has {count}"):
            session.run("train", batch_of(artifact, count))


def test_one_program_is_loaded_at_a_time(artifact: Artifact) -> None:
    session = session_of(artifact)
    values = batch_of(artifact, 6) | {"stats_momentum": np.ones((), np.float32)}
    first = session.run("train", values)["loss"]
    loaded = weakref.ref(session._loaded[1])  # type: ignore[attr-defined]
    session.run("stats", values)
    assert loaded() is None
    assert session.run("train", values)["loss"] != first  # the state went on


def test_mean_over_a_smaller_batch_is_over_that_batch(artifact: Artifact) -> None:
    losses = [session_of(artifact).run("train", batch_of(artifact, count))["loss"] for count in (2, 5)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)  # equal examples: equal means


def test_state_is_checked_on_the_way_in(artifact: Artifact) -> None:
    session = session_of(artifact)
    weights = {n: session.read(n).copy() for n in ("stem.weight", "stem.bias")}
    with pytest.raises(ArtifactCorrupt, match="no parameter"):
        session.load_state(weights)
    with pytest.raises(DeviceRefused, match=r"stem\.nothing"):
        session.read("stem.nothing")
    with pytest.raises(PlanError, match="no program 'prefix'"):
        session.run("prefix", {})


def test_input_of_another_shape_or_type_is_refused(artifact: Artifact) -> None:
    session = session_of(artifact)
    with pytest.raises(DeviceRefused, match=r"input 'input' is float64\[6, 3, 6, 6\]"):
        session.run("train", batch_of(artifact, 6) | {"input": np.zeros((6, 3, 6, 6))})
    with pytest.raises(DeviceRefused, match=r"\[6, 3, 6, 5\]"):
        session.run("train", batch_of(artifact, 6) | {"input": np.zeros((6, 3, 6, 5), np.float32)})


def test_artifact_of_another_release_is_refused(artifact: Artifact) -> None:
    manifest, files = artifact
    newer = msgspec.structs.replace(manifest, minimum_runtime_version="1.6.0")
    with pytest.raises(DeviceRefused, match=r"1\.6\.0.*1\.5\.1 is installed"):
        runtime("executorch").load(newer, files, threads=1)


def test_damaged_programs_are_errors_and_end_no_process(artifact: Artifact, tmp_path: Path) -> None:
    data = artifact[1]["train.pte"].read_bytes()
    for name, damaged in {"short": data[: len(data) // 2], "empty": b"", "other": b"\x5a" * len(data)}.items():
        path = tmp_path / f"{name}.pte"
        path.write_bytes(damaged)
        with pytest.raises(DeviceRefused, match=rf"cannot load {name}\.pte"):
            unchecked_session(artifact, path).run("train", batch_of(artifact, 6))


def test_flipped_byte_is_found_before_the_runtime_sees_it(artifact: Artifact, tmp_path: Path) -> None:
    manifest, files = artifact
    data = bytearray(files["train.pte"].read_bytes())
    data[len(data) // 3] ^= 1
    (tmp_path / "train.pte").write_bytes(data)
    with pytest.raises(ArtifactCorrupt, match=r"train\.pte.*digest.*fetch it again"):
        runtime("executorch").load(manifest, {**files, "train.pte": tmp_path / "train.pte"}, threads=1)


def test_missing_kernel_is_an_error_by_name(artifact: Artifact, tmp_path: Path) -> None:
    data = artifact[1]["train.pte"].read_bytes()
    renamed = data.replace(b"apportion_native::batch_norm_backward", b"apportion_native::batch_norm_backwarx")
    assert renamed != data
    (tmp_path / "renamed.pte").write_bytes(renamed)
    with pytest.raises(DeviceRefused, match="OperatorMissing"):
        unchecked_session(artifact, tmp_path / "renamed.pte").run("train", batch_of(artifact, 6))


def test_session_library_needs_no_torch_and_lacks_nothing() -> None:
    needed = subprocess.run(["ldd", str(session_library())], capture_output=True, text=True, check=True).stdout
    names = {line.split()[0] for line in needed.splitlines()}
    assert {"libexecutorch.so", "libexecutorch_kernels_optimized.so"} <= names
    assert "not found" not in needed
    assert not [name for name in names if "torch" in name.replace("executorch", "") or "c10" in name]


def test_device_process_loads_no_torch(artifact: Artifact) -> None:
    manifest, files = artifact
    folder = files["train.pte"].parent
    script = (
        "import json, sys; from pathlib import Path; from edge.training.artifact_folder import read_artifact_folder;"
        "from edge.runtimes import runtime; from edge.training.self_test import self_test_losses;"
        f"manifest, files = read_artifact_folder(Path({str(folder)!r}));"
        "losses = self_test_losses(runtime('executorch').load(manifest, files, threads=1), manifest, steps=3);"
        "maps = Path('/proc/self/maps').read_text();"
        "print(json.dumps([losses, [m for m in sys.modules if m.split('.')[0] in ('torch', 'executorch')],"
        " 'libtorch' in maps, 'libexecutorch.so' in maps]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    losses, modules, has_torch, has_executorch = json.loads(done.stdout)
    assert losses == pytest.approx(manifest.self_test.losses, rel=1e-5)
    assert (modules, has_torch, has_executorch) == ([], False, True)

"""The self-tests of artifacts that were exported on this machine give the same losses on emulated boards."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch import nn

from coordinator.models.catalog import build_model, input_spec
from edge.contracts.manifest import InputSpec
from edge.runtimes import runtime
from edge.training.artifact_folder import MANIFEST_NAME, read_artifact_folder
from edge.training.self_test import self_test_losses
from export.bundle import export_artifact
from export.training_step import StepSpec
from tests.arm.boards import EmulatedDevice
from tests.arm.value_sets import clear_seed

pytestmark = [pytest.mark.slow, pytest.mark.runtime]

EQUAL = 1e-5
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"input_shape": (64,), "classes": 10, "hidden": [128, 128]},
    "conv2": {"input_shape": (1, 12, 12), "classes": 10},
    "lstm": {"input_shape": (8,), "classes": 90, "hidden": 32},
    "resnet8": {"input_shape": (3, 16, 16), "classes": 10},
    "conv2-float16": {"input_shape": (1, 12, 12), "classes": 10},
    "activations": {"input_shape": (3, 12, 12), "classes": 10},
}
STEPS = 3


def activations_network() -> nn.Module:
    """Every activation with kernels of its own, and group norm, on channels that fill no vector and that fill some."""
    activations = [
        nn.ReLU6(), nn.SiLU(), nn.LeakyReLU(0.1), nn.ELU(), nn.SELU(), nn.CELU(1.5), nn.Tanh(), nn.Sigmoid(),
        nn.Softplus(), nn.Mish(), nn.GELU("tanh"), nn.GELU(), nn.Hardswish(), nn.PReLU(3), nn.PReLU(),
    ]  # fmt: skip
    layers: list[nn.Module] = []
    before = 3
    for place, activation in enumerate(activations):
        channels = 3 if isinstance(activation, nn.PReLU) else (3, 6, 20)[place % 3]
        layers += [
            nn.Conv2d(before, channels, 3, padding=1),
            nn.GroupNorm(1 + (channels + 1) % 2, channels),
            activation,
        ]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


@pytest.fixture(scope="session")
def onnxruntime_artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Artifact folders by model."""
    return exported("onnxruntime", tmp_path_factory.mktemp("onnxruntime"))


@pytest.fixture(scope="session")
def executorch_artifacts(session_library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same for executorch; skipped where the library cannot be built."""
    return exported("executorch", tmp_path_factory.mktemp("executorch"))


def exported(name: str, folder: Path) -> dict[str, Path]:
    """Every model for runtime ``name``, its self-test on values whose ReLU inputs are not within rounding of 0."""
    folders = {}
    for model, options in MODELS.items():
        shape, classes = options["input_shape"], options["classes"]
        build, _, keep = model.partition("-")
        is_own = build == "activations"
        module = activations_network() if is_own else build_model(build, **options)
        spec = InputSpec(layout="chw", shape=shape) if is_own else input_spec(build, input_shape=shape)
        step = StepSpec(input=spec, classes=classes, batch=4, kept_activations="float16" if keep else "")
        manifest = export_artifact(module, step, folder / model, runtime=name)
        seed = clear_seed(module, step, manifest.tensors, steps=STEPS)
        moved = msgspec.structs.replace(manifest.self_test, seed=seed)
        manifest = msgspec.structs.replace(manifest, self_test=moved)
        _, files = read_artifact_folder(folder / model)
        losses = self_test_losses(runtime(name).load(manifest, files, threads=1), manifest, steps=STEPS)
        found = msgspec.structs.replace(moved, losses=tuple(losses))
        manifest = msgspec.structs.replace(manifest, self_test=found)
        (folder / model / MANIFEST_NAME).write_bytes(manifest.to_bytes())
        folders[model] = folder / model
    return folders


def assert_same_losses(device: EmulatedDevice, artifacts: Mapping[str, Path]) -> None:
    """Three losses of every artifact here and there, all within EQUAL of each other."""
    script = Path(__file__).with_name("first_losses.py")
    said = json.loads(device.run(str(script), *map(str, artifacts.values())))
    assert said["torch"] is False
    for model, folder in artifacts.items():
        manifest, _ = read_artifact_folder(folder)
        here, there = manifest.self_test.losses, said["losses"][str(folder)]
        errors = [abs(a - b) / abs(b) for a, b in zip(there, here, strict=True)]
        print(f"{device.board.processor} {manifest.runtime} {model}: {there}, off by {max(errors):.1e}")
        assert len(here) == STEPS
        assert max(errors) <= EQUAL, f"{model}: {there} on the device, {here} here"


def test_onnxruntime_gives_the_losses_of_the_exporting_machine(
    device: EmulatedDevice, onnxruntime_artifacts: dict[str, Path]
) -> None:
    assert_same_losses(device, onnxruntime_artifacts)


def test_executorch_gives_the_losses_of_the_exporting_machine(
    device: EmulatedDevice, session_library: Path, executorch_artifacts: dict[str, Path]
) -> None:
    assert_same_losses(device, executorch_artifacts)


def test_verify_on_the_device_refuses_another_step(
    device: EmulatedDevice, onnxruntime_artifacts: dict[str, Path], tmp_path: Path
) -> None:
    manifest, files = read_artifact_folder(onnxruntime_artifacts["mlp"])
    first = manifest.self_test.losses[0]
    for name, path in files.items():
        (tmp_path / name).write_bytes(path.read_bytes())
    wrong = msgspec.structs.replace(manifest.self_test, losses=(first * 1.01,))
    (tmp_path / MANIFEST_NAME).write_bytes(msgspec.structs.replace(manifest, self_test=wrong).to_bytes())
    good = json.loads(device.run("-m", "edge", "verify", str(onnxruntime_artifacts["mlp"]), "--json"))
    assert (good["ok"], good["steps"]) == (True, STEPS)
    bad = subprocess.run(
        device.command("-m", "edge", "verify", str(tmp_path)),
        env=device.environment(),
        capture_output=True,
        text=True,
    )
    assert bad.returncode == 1
    assert "self-test of onnxruntime artifact" in bad.stderr

"""The comparison of losses: what it gives, that it counts once and moves nothing, and what the gate does with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from edge.contracts.errors import ExportRefused, ParityError
from edge.contracts.manifest import InputSpec
from edge.runtimes import runtime
from export.bundle import export_artifact
from export.loss_probe import LOSSES, PREVIOUS, PROGRAM, THRESHOLD
from export.parity import check_parity
from export.training_step import StepSpec

pytestmark = pytest.mark.slow

SPEC = InputSpec(layout="chw", shape=(1, 4, 4))
MASKED = ("0.weight", "4.weight")


def net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)
        )


def step(**changes: object) -> StepSpec:
    return StepSpec(**{"input": SPEC, "classes": 3, "batch": 4, "masked": MASKED, "probe": True, **changes})  # type: ignore[arg-type]


def values(module: nn.Module, factor: float = 0.5) -> dict[str, np.ndarray]:
    """Weights, earlier ones, thresholds at the median, masks that keep everything."""
    tensors = {name: v.detach().numpy().copy() for name, v in module.state_dict().items() if v.is_floating_point()}
    names = [name for name, _ in module.named_parameters()]
    tensors |= {n + PREVIOUS: tensors[n] * np.float32(factor) for n in names}
    tensors |= {n + THRESHOLD: np.array(np.median(np.abs(tensors[n])), np.float32) for n in MASKED}
    return tensors | {f"{n}#mask": np.ones(tensors[n].shape, bool) for n in MASKED}


def expected(module: nn.Module, tensors: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> list[float]:
    """Losses with batch statistics, by torch in float64."""
    names = [name for name, _ in module.named_parameters()]
    thinned = {n: np.where(np.abs(tensors[n]) >= tensors[n + THRESHOLD], tensors[n], 0) for n in MASKED}
    losses = []
    for weights in ({}, {n: tensors[n + PREVIOUS] for n in names}, thinned):
        part = net().double().train()
        with torch.no_grad():
            for name, parameter in part.named_parameters():
                parameter.copy_(torch.from_numpy(np.array({**tensors, **weights}[name])))
            losses.append(float(F.cross_entropy(part(torch.from_numpy(x).double()), torch.from_numpy(y))))
    return losses


@pytest.mark.runtime
@pytest.mark.parametrize("norm", ["running", "batch"])
def test_losses_are_torchs_and_only_the_first_run_counts(tmp_path: Path, norm: str) -> None:
    module = net()
    manifest = export_artifact(module, step(norm=norm), tmp_path / "a")
    files = {file.name: tmp_path / "a" / file.name for file in manifest.files}
    session = runtime("onnxruntime").load(manifest, files, threads=1)
    tensors = values(module)
    session.load_state(tensors)
    generator = np.random.default_rng(0)
    x = generator.standard_normal((6, *SPEC.shape)).astype(np.float32)
    y = generator.integers(0, 3, 6)
    found = session.run(PROGRAM, {"input": x, "target": y})
    first = np.array(session.read(LOSSES))
    np.testing.assert_allclose(first, [1.0, *expected(module, tensors, x, y)], rtol=1e-5)
    assert len({round(float(v), 4) for v in first}) == 4  # three different losses
    assert found["loss"] == pytest.approx(first[1], rel=1e-6)
    session.run(PROGRAM, {"input": -x, "target": y})
    assert np.array_equal(session.read(LOSSES), first)
    for name, value in tensors.items():
        if name in dict(module.named_parameters()) or "running" in name:
            assert np.array_equal(session.read(name), value), name  # nothing moved
    held = sum(p.numel() for p in module.parameters()) * 4
    without = export_artifact(module, step(norm=norm, probe=False), tmp_path / "b")
    assert manifest.cost.state_bytes - without.cost.state_bytes == held + 4 * len(MASKED) + 4 * 4
    assert manifest.cost.parameters == without.cost.parameters


def test_gate_refuses_a_probe_that_compares_something_else(tmp_path: Path) -> None:
    module = net()
    manifest = export_artifact(module, step(), tmp_path / "right")
    programs = {p.name: (tmp_path / "right" / p.file).read_bytes() for p in manifest.programs}
    check_parity(module, step(), programs, manifest.tensors)
    other = export_artifact(module, step(loss="bce_one_hot"), tmp_path / "other")
    wrong = next(p.file for p in other.programs if p.name == PROGRAM)
    programs[PROGRAM] = (tmp_path / "other" / wrong).read_bytes()
    with pytest.raises(ParityError, match="program train_probe"):
        check_parity(module, step(), programs, manifest.tensors)


@pytest.mark.runtime
def test_onnxruntime_training_holds_the_same_tensors_and_passes_the_gate(tmp_path: Path) -> None:
    manifests = [
        export_artifact(net(), step(), tmp_path / name, runtime=name)
        for name in ("onnxruntime", "onnxruntime_training")
    ]
    stock, training = (set(manifest.program(PROGRAM).inputs) for manifest in manifests)
    assert stock == training
    assert manifests[0].cost.state_bytes == manifests[1].cost.state_bytes


def test_a_format_without_it_refuses_it_by_name(tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match="a comparison of losses before the first step"):
        export_artifact(net(), step(), tmp_path / "a", runtime="executorch")

"""What a step may contain beyond layers: losses, optimizers, regularisers, accumulators, frozen tensors, norm modes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from edge.contracts.manifest import ArtifactManifest, InputSpec
from edge.contracts.tensors import by_role
from export.bundle import export_artifact, read_artifact, verify_artifact
from export.gate_values import gate_values
from export.graph_session import GraphSession
from export.training_step import FactorPair, Optimizer, ParameterGroup, StepSpec

IMAGE = InputSpec(layout="chw", shape=(3, 6, 6))
STEP = StepSpec(input=IMAGE, classes=4, batch=6)
STEPS: dict[str, dict[str, object]] = {
    "sgd-plain": {"optimizer": Optimizer(momentum=False, weight_decay=False)},
    "sgd-decay": {"optimizer": Optimizer(momentum=False)},
    "sgd-momentum": {"optimizer": Optimizer(weight_decay=False)},
    "sgd-nesterov": {"optimizer": Optimizer(nesterov=True)},
    "adam": {"optimizer": Optimizer(kind="adam")},
    "adamw": {"optimizer": Optimizer(kind="adamw")},
    "clip": {"clip_norm": True},
    "clip-adam": {"clip_norm": True, "optimizer": Optimizer(kind="adam", weight_decay=False)},
    "bce": {"loss": "bce_one_hot"},
    "label_masked": {"loss": "label_masked_cross_entropy"},
    "frobenius": {
        "frobenius": (FactorPair("layer.u.weight", "layer.v.weight"), FactorPair("head.u.weight", "head.v.weight"))
    },
    "frobenius-clip": {"frobenius": (FactorPair("head.u.weight", "head.v.weight"),), "clip_norm": True},
    "accumulator": {"squared_gradient": ("layer.u.weight", "head.v.weight"), "clip_norm": True},
    "frozen": {"frozen": ("stem.weight", "stem.bias", "norm.weight", "norm.bias")},
    "frozen-static": {"frozen": ("stem.weight", "stem.bias", "norm.weight", "norm.bias"), "frozen_norm": "static"},
    "frozen-scale-static": {"frozen": ("stem.weight", "stem.bias", "norm.weight"), "frozen_norm": "static"},
    "frozen-factor": {"frozen": ("head.v.weight",), "frobenius": (FactorPair("head.u.weight", "head.v.weight"),)},
    "norm-batch": {"norm": "batch"},
    "norm-batch-static": {
        "norm": "batch",
        "frozen": ("stem.weight", "norm.weight", "norm.bias"),
        "frozen_norm": "static",
    },
    "masked": {"masked": ("layer.u.weight", "head.v.weight"), "squared_gradient": ("head.v.weight",)},
    "masked-adamw": {"masked": ("layer.u.weight", "stem.weight"), "optimizer": Optimizer(kind="adamw")},
    "masked-clip-nesterov": {"masked": ("stem.weight",), "clip_norm": True, "optimizer": Optimizer(nesterov=True)},
    "distillation": {"distillation": True},
    "distillation-batch": {"distillation": True, "norm": "batch", "loss": "label_masked_cross_entropy"},
    "proximal": {"proximal": True},
    "proximal-adam": {"proximal": True, "frozen": ("stem.weight",), "optimizer": Optimizer(kind="adam")},
    "proximal-everything": {
        "proximal": True,
        "distillation": True,
        "clip_norm": True,
        "masked": ("layer.u.weight",),
        "frobenius": (FactorPair("head.u.weight", "head.v.weight"),),
        "squared_gradient": ("head.v.weight",),
    },
    "corrected": {"corrected": True, "optimizer": Optimizer(momentum=False)},
    "corrected-everything": {
        "corrected": True,
        "proximal": True,
        "clip_norm": True,
        "frozen": ("stem.weight",),
        "masked": ("layer.u.weight",),
        "frobenius": (FactorPair("head.u.weight", "head.v.weight"),),
        "squared_gradient": ("head.v.weight",),
    },
    "groups": {
        "optimizer": Optimizer(nesterov=True),
        "groups": (
            ParameterGroup(match="head.*", lr_factor=True, weight_decay="own"),
            ParameterGroup(match="norm.*", weight_decay="none"),
        ),
    },
    "groups-adamw": {
        "optimizer": Optimizer(kind="adamw", weight_decay=False),
        "clip_norm": True,
        "frozen": ("norm.bias",),
        "masked": ("stem.weight",),
        "frobenius": (FactorPair("head.u.weight", "head.v.weight"),),
        "groups": (
            ParameterGroup(match="stem.weight", lr_factor=True, weight_decay="own"),
            ParameterGroup(match="head.*", lr_factor=True, weight_decay="own"),
        ),
    },
    "groups-adam": {
        "optimizer": Optimizer(kind="adam"),
        "groups": (ParameterGroup(match="stem.*", lr_factor=True), ParameterGroup(match="*", weight_decay="own")),
    },
    "everything": {
        "loss": "label_masked_cross_entropy",
        "optimizer": Optimizer(nesterov=True),
        "clip_norm": True,
        "norm": "batch",
        "frobenius": (FactorPair("layer.u.weight", "layer.v.weight"),),
        "squared_gradient": ("head.v.weight",),
        "frozen": ("stem.weight",),
    },
}


TOGETHER = (
    *("sgd-plain", "adam", "clip-adam", "masked-adamw", "masked-clip-nesterov", "bce", "masked", "frozen-factor"),
    *(
        "frozen-static",
        "distillation-batch",
        "everything",
        "proximal-adam",
        "proximal-everything",
        "corrected-everything",
    ),
    *("groups", "groups-adamw", "groups-adam"),
)
"""Of them those that between them have every part: what the other formats are asked to write."""


class Pair(nn.Module):
    """Two layers in a row that stand for one dense layer."""

    def __init__(self, v: nn.Module, u: nn.Module) -> None:
        super().__init__()
        self.v = v
        self.u = u

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.u(self.v(x))


class Factorized(nn.Module):
    """A convolution, batch norm, a spatial factor pair, and a linear factor pair."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.layer = Pair(
            nn.Conv2d(6, 2, (1, 3), padding=(0, 1), bias=False), nn.Conv2d(2, 6, (3, 1), padding=(1, 0), bias=False)
        )
        self.head = Pair(nn.Linear(6, 3, bias=False), nn.Linear(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        return self.head(torch.tanh(self.layer(x)).mean((2, 3)))


def step(**changes: object) -> StepSpec:
    return msgspec.structs.replace(STEP, **changes)


def module() -> nn.Module:
    torch.manual_seed(0)
    return Factorized()


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_step_agrees_with_torch(name: str, tmp_path: Path) -> None:
    manifest = export_artifact(module(), step(**STEPS[name]), tmp_path / "artifact")
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance
    assert verify_artifact(tmp_path / "artifact", module()) == manifest.parity


def test_steps_of_the_other_formats_have_every_part() -> None:
    def parts(names: Iterable[str]) -> set[tuple[str, object]]:
        optimizers = {("optimizer", getattr(STEPS[n].get("optimizer"), "kind", "")) for n in names}
        others = {(k, v if isinstance(v, str) else "") for n in names for k, v in STEPS[n].items() if k != "optimizer"}
        return optimizers | others

    assert parts(TOGETHER) == parts(STEPS)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> tuple[ArtifactManifest, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("running") / "artifact"
    export_artifact(module(), STEP, folder)
    return read_artifact(folder)


def test_manifest_declares_roles_and_programs(running: tuple[ArtifactManifest, dict[str, bytes]]) -> None:
    manifest, _ = running
    assert [p.name for p in manifest.programs] == ["train", "eval", "stats"]
    assert {t.name for t in manifest.specs("hyper")} == {"lr", "momentum", "weight_decay", "stats_momentum"}
    assert {t.name for t in manifest.specs("buffer")} == {"norm.running_mean", "norm.running_var"}
    assert {t.name for t in manifest.specs("slot")} == {f"{n}#momentum" for n, _ in module().named_parameters()}
    assert manifest.cost.parameters == sum(p.numel() for p in module().parameters())
    train = manifest.program("train")
    assert {o.tensor for o in train.outputs if o.name.startswith("next:")} == {
        t.name for t in manifest.specs("parameter", "slot", "buffer")
    }


@pytest.mark.slow
def test_frozen_parameters_have_no_slot_and_no_output(tmp_path: Path) -> None:
    frozen = ("stem.weight", "stem.bias")
    manifest = export_artifact(module(), step(frozen=frozen), tmp_path / "artifact")
    assert {t.name for t in manifest.specs("frozen")} == set(frozen)
    touched = {o.tensor for o in manifest.program("train").outputs} | {t.name for t in manifest.specs("slot")}
    assert not [name for name in touched if name.startswith("stem.")]
    assert manifest.cost.trained_parameters == manifest.cost.parameters - (6 * 3 * 9 + 6)


@pytest.mark.parametrize("batch", [2, 5, 32])
def test_one_graph_runs_every_batch_size(batch: int, running: tuple[ArtifactManifest, dict[str, bytes]]) -> None:
    manifest, files = running
    values = gate_values(STEP, manifest.tensors)
    rng = np.random.default_rng(0)
    values["input"] = rng.normal(size=(batch, *IMAGE.shape)).astype(np.float32)
    values["target"] = rng.integers(0, 4, batch)
    got = GraphSession(files["train.onnx"]).run(values)
    reference = module().double().train()
    with torch.no_grad():
        for name, tensor in [*reference.named_parameters(), *reference.named_buffers()]:
            if name in values:
                tensor.copy_(torch.from_numpy(values[name]))
    loss = nn.functional.cross_entropy(
        reference(torch.from_numpy(values["input"]).double()), torch.from_numpy(values["target"])
    )
    assert float(got["loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    variance = reference.norm.running_var.numpy()
    np.testing.assert_allclose(got["next:norm.running_var"], variance, rtol=1e-5)


def test_batch_of_one_runs_without_batch_norm(tmp_path: Path) -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 4))
    export_artifact(plain, STEP, tmp_path / "artifact")
    manifest, files = read_artifact(tmp_path / "artifact")
    values = gate_values(STEP, manifest.tensors)
    values["input"], values["target"] = values["input"][:1], values["target"][:1]
    assert np.isfinite(GraphSession(files["train.onnx"]).run(values)["loss"])


def test_stats_program_is_the_cumulative_average_of_torch(running: tuple[ArtifactManifest, dict[str, bytes]]) -> None:
    manifest, files = running
    values = gate_values(STEP, manifest.tensors)
    session = GraphSession(files["stats.onnx"])
    reference = module().train()
    with torch.no_grad():
        for name, tensor in reference.named_parameters():
            tensor.copy_(torch.from_numpy(values[name]))
    reference.norm.reset_running_stats()
    reference.norm.momentum = None
    rng = np.random.default_rng(0)
    for i, batch in enumerate((6, 3, 9)):
        x = rng.normal(size=(batch, *IMAGE.shape)).astype(np.float32)
        values |= {"input": x, "stats_momentum": np.array(1 / (i + 1), np.float32)}
        values |= {name.removeprefix("next:"): value for name, value in session.run(values).items()}
        with torch.no_grad():
            reference(torch.from_numpy(x))
    np.testing.assert_allclose(values["norm.running_mean"], reference.norm.running_mean, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(values["norm.running_var"], reference.norm.running_var, rtol=1e-5)


def test_evaluation_sums_are_exact_over_uneven_batches(running: tuple[ArtifactManifest, dict[str, bytes]]) -> None:
    manifest, files = running
    values = gate_values(STEP, manifest.tensors)
    session, rng = GraphSession(files["eval.onnx"]), np.random.default_rng(0)
    x, y = rng.normal(size=(10, *IMAGE.shape)).astype(np.float32), rng.integers(0, 4, 10)
    whole = session.run(values | {"input": x, "target": y})
    parts = [session.run(values | {"input": x[s], "target": y[s]}) for s in (slice(0, 7), slice(7, 10))]
    assert sum(float(p["loss"]) for p in parts) == pytest.approx(float(whole["loss"]), rel=1e-5)
    assert sum(int(p["correct"]) for p in parts) == int(whole["correct"])


def test_accumulator_adds_the_square_of_every_step(tmp_path: Path) -> None:
    spec = step(squared_gradient=("head.v.weight",), optimizer=Optimizer(momentum=False, weight_decay=False))
    export_artifact(module(), spec, tmp_path / "artifact")
    manifest, files = read_artifact(tmp_path / "artifact")
    (accumulator,) = by_role(manifest.tensors, "accumulator")
    assert accumulator.name == "head.v.weight#squared_gradient"
    values = gate_values(spec, manifest.tensors)
    session = GraphSession(files["train.onnx"], extra=["grad:head.v.weight"])
    first = session.run(values)
    again = session.run(values | {accumulator.name: first[f"next:{accumulator.name}"]})
    np.testing.assert_allclose(again[f"next:{accumulator.name}"], 2 * first["grad:head.v.weight"] ** 2, rtol=1e-6)

"""Steps by micro-batches: the state after three steps of a device's own session is torch's on whole batches."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from edge.contracts.errors import DeviceRefused, ExportRefused
from edge.contracts.manifest import ArtifactManifest, InputSpec
from edge.contracts.plan import BlobRef, Schedule, WorkOrder
from edge.contracts.streams import self_test_value
from edge.runtimes import runtime as runtime_named
from edge.training.batches import BatchOrder, Examples
from edge.training.local_data import LocalData
from edge.training.self_test import check_self_test
from edge.training.steps import train
from export.bundle import export_artifact
from export.form_refusal import refused_form
from export.formats.onnx_step.format import OnnxStep
from export.forms.step_form import PLAIN, StepForm, form_named, in_form
from export.gate_values import gate_hyper, gate_values
from export.reference import ReferenceStep
from export.training_step import FactorPair, Optimizer, SparseWeight, StepSpec, Variant

pytestmark = pytest.mark.runtime

IMAGE = InputSpec(layout="chw", shape=(3, 8, 8), augment=("flip", "crop4"), mean=(0.2,), std=(1.5,))
STEP = StepSpec(input=IMAGE, classes=5, batch=8, micro_batches=4)
STEPS = 3
WHOLE = StepSpec(
    input=IMAGE,
    classes=5,
    batch=8,
    micro_batches=4,
    clip_norm=True,
    squared_gradient=("stem.weight",),
    masked=("head.weight",),
    frobenius=(FactorPair("u.weight", "v.weight"),),
    frozen=("still.weight", "still.bias"),
    distillation=True,
)
"""Everything that composes with micro-batches at once."""


class GroupNet(nn.Module):
    """Convolutions with group norm, a pair of factors and a frozen static batch norm."""

    def __init__(self, norm: type[nn.Module] | None = None) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = norm(8) if norm else nn.GroupNorm(2, 8)
        self.v = nn.Conv2d(8, 3, 1, bias=False)
        self.u = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.still = nn.GroupNorm(4, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(self.still(self.u(self.v(x))) + x)
        return self.head(x.mean((2, 3)))


def exported(folder: Path, spec: StepSpec, name: str) -> ArtifactManifest:
    torch.manual_seed(0)
    return export_artifact(GroupNet(), spec, folder, runtime=name)


def examples(manifest: ArtifactManifest) -> Examples:
    draws = np.random.default_rng(3)
    x, y = draws.normal(size=(27, 3, 8, 8)).astype(np.float32), draws.integers(0, 5, 27)
    return Examples(LocalData("here", x, y), manifest)


def order(manifest: ArtifactManifest, spec: StepSpec, **changes: object) -> WorkOrder:
    blob = BlobRef("0" * 64, 1, "raw", 1)
    values = {
        "assignment_id": "a", "federation": "f", "device": "d", "round": 0, "attempt": 0, "artifact": blob,
        "weights": blob, "schedule": Schedule(steps=STEPS), "batch": manifest.batch, "last_batch": "drop",
        "data_seed": 7, "hyper": gate_hyper(spec), "upload": (), "threads": 1,
    }  # fmt: skip
    return WorkOrder(**(values | changes))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "spec"),
    [
        (
            "onnxruntime",
            msgspec.structs.replace(
                WHOLE, optimizer=Optimizer(kind="adamw"), micro_batches=2, proximal=True, corrected=True
            ),
        ),
        ("executorch", msgspec.structs.replace(WHOLE, sparse=(SparseWeight("head.weight", 30),), distillation=False)),
    ],
    ids=["onnxruntime-adamw-2", "executorch-sgd-4-sparse"],
)
def test_three_steps_of_a_session_are_those_of_torch_on_whole_batches(
    name: str, spec: StepSpec, tmp_path: Path
) -> None:
    if name == "executorch":
        pytest.importorskip("executorch")
    manifest = exported(tmp_path / "artifact", spec, name)
    assert [p.name for p in manifest.programs] == ["accumulate", "train", "eval"]
    assert (manifest.micro_batches, manifest.programs[0].batch) == (spec.micro_batches, 8 // spec.micro_batches)
    files = {f.name: tmp_path / "artifact" / f.name for f in manifest.files}
    session = runtime_named(name).load(manifest, files, threads=1)
    check_self_test(session, manifest, steps=3)
    whole = in_form(spec, PLAIN)
    state = {t.name: self_test_value(t, 1, 8) for t in manifest.tensors if t.role not in ("input", "target", "hyper")}
    state["head.weight#mask"].reshape(-1)[::3] = False
    for kept in {"head.weight", "head.weight#teacher"} & state.keys():
        state[kept] *= state["head.weight#mask"]
    session.load_state(state)
    data = examples(manifest)
    told: list[int] = []
    asked = order(manifest, spec)
    outcome = train(session, manifest, asked, data, progress=lambda step, total, loss: told.append(step))
    assert (outcome.steps, told) == (STEPS, [1, 2, 3])

    plan = BatchOrder(len(data), 8, "drop", asked.data_seed)
    reference = ReferenceStep(GroupNet(), whole, _values(whole, manifest, state), torch.float64)
    losses, correct = [], 0
    for number, indices in enumerate(plan.batches(STEPS)):
        x, y = data.batch(indices, plan.augment_seed(number))
        reference.x, reference.target = torch.from_numpy(x).double(), torch.from_numpy(y)
        with torch.no_grad():
            correct += int((reference.module(reference.x).argmax(1) == reference.target).sum())
        trace = reference.run(1)
        losses += trace.losses
    assert outcome.loss == pytest.approx(np.mean(losses), rel=1e-6)
    assert outcome.metrics["accuracy"] == pytest.approx(correct / (8 * STEPS))
    for tensor, value in trace.states[-1].items():
        np.testing.assert_allclose(session.read(tensor), value, rtol=2e-5, atol=2e-6, err_msg=tensor)
    sums = [t.name for t in manifest.tensors if t.name.endswith("#gradient")]
    assert len(sums) == 7
    assert manifest.tensor("head.weight#gradient").capacity == (30 if spec.sparse else 0)
    assert not any(session.read(n).any() for n in sums)


def _values(spec: StepSpec, manifest: ArtifactManifest, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return gate_values(spec, manifest.tensors) | state


@pytest.mark.slow
def test_memory_falls_with_the_size_of_a_micro_batch() -> None:
    plain, parts = (OnnxStep().write(GroupNet(), in_form(STEP, form)).memory for form in (PLAIN, StepForm(4)))
    assert parts.intermediate < 0.3 * plain.intermediate
    assert parts.batch > 0.9 * plain.batch  # a session is given the whole batch


@pytest.mark.slow
def test_an_agent_that_knows_no_micro_batches_refuses(tmp_path: Path) -> None:
    manifest = exported(tmp_path / "artifact", STEP, "onnxruntime")
    ignorant = msgspec.structs.replace(manifest, micro_batches=1)
    files = {f.name: tmp_path / "artifact" / f.name for f in manifest.files}
    session = runtime_named("onnxruntime").load(ignorant, files, threads=1)
    with pytest.raises(DeviceRefused, match="batches of 2, this one has 8"):
        train(session, ignorant, order(ignorant, STEP), examples(ignorant))
    with pytest.raises(DeviceRefused, match="batches of 8, this one has 3"):
        train(
            session, manifest, order(manifest, STEP, last_batch="keep", schedule=Schedule(epochs=1)), examples(manifest)
        )


def test_forms_that_a_step_cannot_take_are_refused_with_the_reason() -> None:
    def refused(**changes: object) -> str:
        spec = msgspec.structs.replace(STEP, **changes)
        return refused_form(GroupNet(), spec, "onnxruntime")

    assert not refused()
    assert "batch of 8 does not divide into 3" in refused(micro_batches=3)
    assert "2, 4, 8 micro-batches" in refused(micro_batches=16)
    assert "several training programs" in refused(variants=(Variant("half"),))
    assert "losses before the first step" in refused(probe=True)
    assert "onnxruntime_training cannot carry gradients added up" in refused_form(
        GroupNet(), STEP, "onnxruntime_training"
    )
    assert "onnxruntime_training cannot carry values computed again" in refused_form(
        GroupNet(), in_form(STEP, StepForm(recompute=True)), "onnxruntime_training"
    )


@pytest.mark.slow
def test_batch_statistics_are_refused_by_the_layers_name_unless_static(tmp_path: Path) -> None:
    module = GroupNet(nn.BatchNorm2d)
    assert "layer 'norm': BatchNorm2d normalises with the statistics of a batch" in refused_form(
        module, STEP, "onnxruntime"
    )
    with pytest.raises(ExportRefused, match="norm"):
        export_artifact(module, STEP, tmp_path / "artifact")
    frozen = ("stem.weight", "norm.weight", "norm.bias")
    static = msgspec.structs.replace(STEP, frozen=frozen, frozen_norm="static")
    manifest = export_artifact(module, static, tmp_path / "static")
    assert manifest.parity.max_grad_rel_err < 1e-5


def test_forms_have_names_that_can_be_read_back() -> None:
    for name in ("plain", "micro:4", "recompute", "micro:16+recompute"):
        assert form_named(name).name == name
    assert form_named("micro:4+recompute") == StepForm(4, recompute=True)
    assert form_named("micro:2+window:64+base:int4") == StepForm(2, window=64, base="int4")
    assert form_named("window:64").of_step == PLAIN
    assert form_named("micro:2+base:int4").of_model == StepForm(base="int4")

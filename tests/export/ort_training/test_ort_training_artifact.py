"""Artifacts for ONNX Runtime Training: every kind of step and layer passes the gate or is refused by name."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from edge.contracts.errors import ExportRefused
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.tensor_file import encode_tensors
from edge.runtimes.environments import runtime_python
from export.bundle import export_artifact, read_artifact, verify_artifact
from export.formats.ort_training.checkpoint import write_checkpoint
from export.formats.ort_training.format import OrtTraining
from export.formats.ort_training.memory import forward_shapes
from export.formats.ort_training.optimizer_model import optimizer_model
from export.gate_values import gate_values
from export.training_step import Optimizer, StepSpec
from tests.export.modules import CLASSES, FEATURES, IMAGE, Apply, Head, with_head
from tests.export.test_step import STEPS, TOGETHER, module, step

pytestmark = [pytest.mark.runtime, pytest.mark.slow]
RUNTIME = "onnxruntime_training"
LAYERS = (
    "conv2d-grouped", "conv2d-depthwise", "conv1d", "max_pool-overlapping", "avg_pool-overlapping", "avg_pool1d",
    "batch_norm1d", "batch_norm2d-plain", "group_norm", "layer_norm-plain", "gelu-tanh", "softplus", "hardswish", "elu",
    "embedding-padding", "pad", "multihead_attention", "lstm-bidirectional", "gru",
)  # fmt: skip
"""Those that the runtime needs another form of, and one of each other family; more in ``test_layer_support.py``."""


def exported(layers: nn.Module, spec: StepSpec, folder: Path) -> ArtifactManifest:
    return export_artifact(layers, spec, folder / "artifact", runtime=RUNTIME)


@pytest.mark.parametrize("name", TOGETHER)
def test_step_on_ort_training_agrees_with_torch(name: str, tmp_path: Path) -> None:
    manifest = exported(module(), step(**STEPS[name]), tmp_path)
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance


@pytest.mark.parametrize("name", LAYERS)
def test_layer_family_on_ort_training_passes_the_gate(name: str, tmp_path: Path) -> None:
    layers, spec = with_head(name)
    manifest = exported(layers, StepSpec(input=spec, classes=CLASSES, batch=6), tmp_path)
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance < 0.05


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("transposed2d", r"'body\.0'.*no gradient of ConvTranspose; use plain convolutions"),
        ("amax", r"'body\.1'.*no gradient of ReduceMax"),
        ("lstm-cell", r"'body\.rnn'.*cell state is read; use its outputs only"),
    ],
)
def test_layer_without_gradient_is_refused_by_name(name: str, words: str, tmp_path: Path) -> None:
    layers, spec = with_head(name)
    with pytest.raises(ExportRefused, match=words):
        exported(layers, StepSpec(input=spec, classes=CLASSES, batch=6), tmp_path)
    assert not (tmp_path / "artifact").exists()


@pytest.mark.parametrize(
    "part",
    [lambda x: torch.split(x, [2, 4, 3], 1)[2], lambda x: x.reshape(-1, 3, 3).unbind(1)[1]],
    ids=["split", "unbind"],
)
def test_unused_part_of_a_split_has_a_gradient_of_zero(
    part: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    # The runtime's gradient of such a Split leaves the unused part out.
    body = nn.Sequential(nn.Linear(12, 9), Apply(part), nn.Tanh())
    manifest = exported(Head(body, FEATURES), StepSpec(input=FEATURES, classes=CLASSES, batch=6), tmp_path)
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance


@pytest.mark.parametrize("affine", [True, False])
def test_norms_of_one_width_keep_statistics_of_their_own(affine: bool, tmp_path: Path) -> None:
    # The kernel writes statistics over those it is given: shared constants gave every layer those of the last.
    norms = [nn.BatchNorm1d(9, affine=affine) for _ in range(3)]
    body = nn.Sequential(nn.Linear(12, 9), norms[0], nn.Tanh(), norms[1], nn.Linear(9, 9), norms[2])
    manifest = exported(Head(body, FEATURES), StepSpec(input=FEATURES, classes=CLASSES, batch=6), tmp_path)
    assert {o.tensor for o in manifest.program("train").outputs if o.name.startswith("next:")} == {
        f"body.{i}.running_{kind}" for i in (1, 3, 5) for kind in ("mean", "var")
    }


def test_files_are_those_of_the_training_api_and_hold_no_weights(tmp_path: Path) -> None:
    exported(module(), step(optimizer=Optimizer(kind="adamw")), tmp_path)
    manifest, files = read_artifact(tmp_path / "artifact")
    models = {"training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "stats.onnx"}
    assert set(files) == {*models, "checkpoint", "update.json"}
    smallest = min(t.byte_count() for t in manifest.specs("parameter") if t.element_count() > 100)
    for name in models:
        model = onnx.load_from_string(files[name])
        assert model.ir_version <= 10
        assert {entry.domain for entry in model.opset_import} <= {"", "com.microsoft"}
        assert all(len(constant.SerializeToString()) < smallest for constant in model.graph.initializer)
    assert len(files["checkpoint"]) < sum(t.byte_count() for t in manifest.specs("parameter"))
    assert verify_artifact(tmp_path / "artifact", module()) == manifest.parity


def test_files_are_the_same_every_time() -> None:
    first, second = (OrtTraining().write(module(), step()).files for _ in range(2))
    assert first == second


def test_optimizer_model_exists_for_rules_the_runtime_has() -> None:
    rules = {
        "adamw": Optimizer(kind="adamw"),
        "adam": Optimizer(kind="adam"),
        "sgd": Optimizer(momentum=False),
        "momentum": Optimizer(),
    }
    assert {name for name, rule in rules.items() if optimizer_model(rule) is not None} == {"adamw", "sgd"}


def test_memory_plan_counts_state_gradients_and_what_the_backward_pass_keeps() -> None:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(300, 64), nn.Tanh(), nn.Linear(64, CLASSES))
    spec = StepSpec(input=IMAGE, classes=CLASSES, batch=32, optimizer=Optimizer(kind="adamw"))
    plan = OrtTraining().write(layers, spec).memory
    parameters = 4 * (300 * 64 + 64 + 64 * CLASSES + CLASSES)
    assert plan.state == 3 * parameters + 4  # values, two slots, the step count
    assert plan.written == parameters
    assert plan.batch == 32 * (4 * 300 + 8)
    # Kept: tanh's outputs. The peak is at the first weight's gradient, beside that of its outputs and no more.
    assert 4 * 300 * 64 + 32 * 64 * 4 <= plan.intermediate < 4 * 300 * 64 + 4 * 32 * 64 * 4


def test_forward_shapes_take_the_batch_size() -> None:
    graph = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20]> g (float[batch, 3] x, float[3, 5] w) => (float[batch, 5] y)'
        "{ h = MatMul(x, w)  y = Relu(h) }"
    )
    assert forward_shapes(graph, 7) == {"x": (7, 3), "w": (3, 5), "h": (7, 5), "y": (7, 5)}


STOCK_API = """
import json, sys
import edge.runtimes.onnxruntime_training.session  # for the import alone, without torch
from onnxruntime.training.api import CheckpointState, Module, Optimizer
import numpy as np
folder, checkpoint = sys.argv[1:3]
state = CheckpointState.load_checkpoint(checkpoint)
model = Module(f"{folder}/training_model.onnx", state, f"{folder}/eval_model.onnx")
optimizer = Optimizer(f"{folder}/optimizer_model.onnx", model)
optimizer.set_learning_rate(0.01)
x = np.random.default_rng(0).normal(size=(6, 3, 6, 6)).astype(np.float32)
y = np.arange(6) % 5
losses = []
for _ in range(40):
    model.train()
    losses.append(float(model(x, y)[0]))
    optimizer.step()
    model.lazy_reset_grad()
model.eval()
print(json.dumps([losses, float(model(x, y)[0]) / 6, [m for m in sys.modules if m in ("torch", "onnx")]]))
"""


def test_files_train_and_evaluate_through_the_runtimes_own_api(tmp_path: Path) -> None:
    spec = step(optimizer=Optimizer(kind="adamw"), norm="batch")
    manifest = exported(module(), spec, tmp_path)
    values = gate_values(spec, manifest.tensors)
    (tmp_path / "weights").write_bytes(encode_tensors({t.name: values[t.name] for t in manifest.specs("parameter")}))
    write_checkpoint(tmp_path / "artifact", tmp_path / "weights", tmp_path / "complete")
    command = [str(runtime_python(RUNTIME)), "-c", STOCK_API, str(tmp_path / "artifact"), str(tmp_path / "complete")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses, evaluated, modules = json.loads(done.stdout.splitlines()[-1])
    assert losses[-1] < 0.7 * losses[0]
    assert evaluated < losses[-2]
    assert modules == []

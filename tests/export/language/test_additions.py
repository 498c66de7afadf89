"""Bottlenecks, prefixes and prompts: the written step of every family against torch, and places against ``peft``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from edge.contracts.errors import ExportRefused, ParityError, PlanError
from edge.contracts.tensor_file import encode_tensors
from edge.runtimes.onnxruntime import session as onnxruntime
from edge.runtimes.onnxruntime.file_order import ask_for_file_order
from edge.runtimes.weights_file import WeightsFile
from edge.training.artifact_folder import read_artifact_folder
from export.bundle import export_artifact
from export.formats.onnx_language.format import OnnxLanguage
from export.gate_values import gate_values
from export.graph_session import GraphSession
from export.language.additions import is_addition, is_beside_base
from export.language.base_weights import base_specs, dequantised
from export.language.causal_model import CausalModel, meta_model, token_input
from export.parity import one_thread
from export.training_step import Optimizer, StepSpec
from tests.export.language.models import ADDED, FAMILIES, LENGTH, added_cut, step_of

PAIRS = [(kind, family) for kind in ADDED for family in FAMILIES]


@pytest.fixture(autouse=True)
def _on_one_thread() -> Iterator[None]:
    with one_thread():
        yield


def dense(module: CausalModel, values: dict[str, np.ndarray], dtype: torch.dtype) -> CausalModel:
    """``module`` with ``values``, in torch; additions alone trained."""
    made = module.to_empty(device="cpu").to(dtype)
    for name, parameter in made.named_parameters():
        parameter.data = torch.from_numpy(np.array(dequantised(name, values))).to(dtype)
        parameter.requires_grad_(is_addition(name))
    return made


def loss_of(model: CausalModel, values: dict[str, np.ndarray]) -> Tensor:
    """By torch's own cross-entropy over whole logits."""
    return F.cross_entropy(model(torch.from_numpy(values["input"])), torch.from_numpy(values["target"]))


def test_a_base_file_has_no_addition() -> None:
    for kind in ADDED:
        names = {spec.name for spec in base_specs(added_cut("llama", kind))}
        assert names == {spec.name for spec in base_specs(meta_model(FAMILIES["llama"]))}


@pytest.mark.parametrize(("kind", "family"), PAIRS)
def test_gate_passes(kind: str, family: str, tmp_path: Path) -> None:
    module = added_cut(family, kind)
    manifest = export_artifact(module, step_of(module), tmp_path / "a")
    assert manifest.parity.tolerance <= 1e-4
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance
    assert {s.name for s in manifest.specs("parameter")} == {n for n, _ in module.named_parameters() if is_addition(n)}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float16", "int4"])
@pytest.mark.parametrize(("kind", "family"), PAIRS)
def test_gate_passes_in_every_precision(kind: str, family: str, precision: str, tmp_path: Path) -> None:
    module = added_cut(family, kind, precision)  # type: ignore[arg-type]
    manifest = export_artifact(module, step_of(module), tmp_path / "a")
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance <= 1e-4


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize(("kind", "family"), PAIRS)
def test_gradients_and_eight_steps_are_those_of_the_whole_module_in_torch(
    kind: str, family: str, precision: str
) -> None:
    module = added_cut(family, kind, precision)  # type: ignore[arg-type]
    spec = step_of(module, optimizer=Optimizer(kind="adamw"), clip_norm=True)
    written = OnnxLanguage().write(module, spec)
    values = gate_values(spec, written.tensors) | {"clip_norm": np.array(0.1, np.float32)}
    values["target"][0, :5] = -100
    found = {}
    for dtype in (torch.float64, torch.float32):
        model = dense(added_cut(family, kind, precision), values, dtype)  # type: ignore[arg-type]
        loss_of(model, values).backward()
        found[dtype] = {n: p.grad.double().numpy() for n, p in model.named_parameters() if p.grad is not None}
    exact = found[torch.float64]
    train = written.files["train.onnx"]
    session = GraphSession(train, [f"grad:{name}" for name in exact], set_options=ask_for_file_order)
    outputs = session.run(values)
    largest = max(np.abs(value).max() for value in exact.values())
    errors = [0.0, 0.0]
    for name, value in exact.items():
        scale = max(np.abs(value).max(), 1e-4 * largest)
        for side, got in enumerate((outputs[f"grad:{name}"], found[torch.float32][name])):
            errors[side] = max(errors[side], np.abs(got - value).max() / scale)
    assert errors[0] <= 10 * max(errors[1], 1e-7)

    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.002, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    feeds = dict(values)
    for _ in range(8):
        optimizer.zero_grad()
        loss = loss_of(model, values)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 0.1)
        optimizer.step()
        outputs = session.run(feeds)
        feeds |= {n.removeprefix("next:"): v for n, v in outputs.items() if n.startswith("next:")}
        assert float(outputs["loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)


@pytest.mark.parametrize("kind", ["adapter", "prefix"])
def test_blocks_below_the_first_addition_have_no_backward_pass(kind: str, tmp_path: Path) -> None:
    module = added_cut("gemma3", kind, blocks=[1])
    export_artifact(module, step_of(module), tmp_path / "a")
    graph = onnx.load(tmp_path / "a" / "train.onnx").graph
    assert not [node.name for node in graph.node if node.name.startswith("blocks.0/") and "forward" not in node.name]
    backward = {node.op_type for node in graph.node if node.name.startswith("blocks.1/backward")}
    assert ("DequantizeLinear" in backward) == (kind == "prefix")  # nothing below a bottleneck is gone through


@pytest.mark.parametrize("kind", ADDED)
def test_micro_batches_and_frozen_parts_pass_the_gate(kind: str, tmp_path: Path) -> None:
    module = added_cut("qwen2", kind)
    first = next(n for n, _ in module.named_parameters() if is_addition(n))
    frozen = [first] if kind != "prompt" else []
    spec = step_of(module, frozen=frozen, micro_batches=2, clip_norm=True)
    manifest = export_artifact(module, spec, tmp_path / "a")
    assert [s.name for s in manifest.specs("frozen")] == frozen


@pytest.mark.parametrize("kind", ADDED)
def test_any_number_of_examples_runs_and_prompts_score_nowhere(kind: str) -> None:
    module = added_cut("gpt2", kind)
    spec = step_of(module)
    written = OnnxLanguage().write(module, spec)
    values = gate_values(spec, written.tensors)
    session = GraphSession(written.files["eval.onnx"], set_options=ask_for_file_order)
    whole = session.run(values)
    parts = [session.run(values | {n: values[n][i : i + 1] for n in ("input", "target")}) for i in range(4)]
    for name in ("loss", "sum:entropy", "sum:positions"):
        assert float(whole[name]) == pytest.approx(sum(float(part[name]) for part in parts), rel=1e-5)
    assert float(whole["sum:positions"]) == values["target"].size


@pytest.mark.parametrize("kind", ADDED)
def test_a_devices_session_gives_the_manifests_losses(kind: str, tmp_path: Path) -> None:
    module = added_cut("llama", kind)
    export_artifact(module, step_of(module), tmp_path / "a")
    manifest, files = read_artifact_folder(tmp_path / "a")
    session = onnxruntime.load(manifest, files, threads=1)
    values = gate_values(step_of(module), manifest.tensors, masked=False)
    for name, roles in (("weights", ("parameter", "frozen")), ("base", ("mapped",))):
        (tmp_path / name).write_bytes(encode_tensors({s.name: values[s.name] for s in manifest.specs(*roles)}))
    session.load_state(WeightsFile(tmp_path / "weights", where="weights", constants=tmp_path / "base"))
    feeds = {n: values[n] for n in ("input", "target")} | {s.name: values[s.name] for s in manifest.specs("hyper")}
    losses = [session.run("train", feeds)["loss"] for _ in range(3)]
    assert losses == pytest.approx(manifest.self_test.losses, rel=1e-6)


def test_wrong_gradient_of_a_prefix_is_refused() -> None:
    module = added_cut("gpt2", "prefix")
    spec = step_of(module)
    written = OnnxLanguage().write(module, spec)
    model = onnx.load_from_string(written.files["train.onnx"])
    products = (n for n in model.graph.node if n.op_type == "FusedMatMul" and "blocks.0/backward" in n.name)
    scaled = [a for n in products for a in n.attribute if a.name == "alpha" and a.f != 1.0]
    scaled[0].f = 1.0  # of the keys' gradient
    files = {**written.files, "train.onnx": model.SerializeToString()}
    with pytest.raises(ParityError, match=r"gradients of one step: .*prefix\.keys"):
        OnnxLanguage().check(module, spec, files, written.programs, written.tensors)


def test_virtual_positions_and_a_window_are_at_most_the_context() -> None:
    shape = FAMILIES["gpt2"]
    for kind in ("prefix", "prompt"):
        module = added_cut("gpt2", kind, size=shape.context - LENGTH + 1)
        with pytest.raises(PlanError, match=r"17 virtual positions and windows of 16 symbols are 33 places, .* has 32"):
            OnnxLanguage().write(module, step_of(module))
        with pytest.raises(PlanError, match="33 places"):
            module(torch.zeros(1, LENGTH, dtype=torch.int64, device="meta"))


def test_a_cut_that_trains_nothing_is_refused() -> None:
    module = added_cut("gpt2", "prompt")
    names = tuple(name for name, _ in module.named_parameters())
    spec = StepSpec(
        input=token_input(module.architecture, LENGTH), classes=97, batch=2, task="next-token",
        tensors=step_of(module).tensors, frozen=names,
    )  # fmt: skip
    with pytest.raises(ExportRefused, match="no factor is trained"):
        OnnxLanguage().write(module, spec)
    assert any(map(is_beside_base, names))

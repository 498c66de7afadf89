"""The written step of every family and precision against torch: the gate itself, and torch without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F

from edge.contracts.errors import ArtifactCorrupt, ExportRefused, ParityError
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.tensor_file import encode_tensors
from edge.runtimes.onnxruntime import session as onnxruntime
from edge.runtimes.onnxruntime.file_order import ask_for_file_order
from edge.runtimes.weights_file import WeightsFile
from edge.training.artifact_folder import read_artifact_folder
from edge.training.self_test import check_self_test
from export.bundle import export_artifact, verify_artifact
from export.formats.onnx_language.format import OnnxLanguage
from export.formats.onnx_language.update_reference import UpdateReference
from export.gate_values import gate_values
from export.graph_session import GraphSession
from export.language.architecture import Precision
from export.language.base_weights import base_specs, dequantised, held, matrices
from export.language.causal_model import CausalModel
from export.parity import one_thread
from export.training_step import Optimizer, StepSpec
from tests.export.language.models import FAMILIES, LENGTH, small_cut, step_of, with_factors

PRECISIONS: tuple[Precision, ...] = ("float32", "float16", "int8", "int4")
EVERYWHERE = ("blocks.*",)


@pytest.fixture(autouse=True)
def _on_one_thread() -> Iterator[None]:
    with one_thread():
        yield


def values_of(module: CausalModel, spec: StepSpec) -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    """The files of a step, and formula values of every input."""
    written = OnnxLanguage().write(module, spec)
    return written.files, gate_values(spec, written.tensors)


def dense(module: CausalModel, values: dict[str, np.ndarray], dtype: torch.dtype) -> CausalModel:
    """The whole module of torch with ``values``, only factors trained."""
    made = with_factors_like(CausalModel(module.architecture), module).to(dtype)
    for name, parameter in made.named_parameters():
        value = values[name] if name.endswith((".u", ".v")) else dequantised(name, values)
        parameter.data = torch.from_numpy(np.array(value)).to(dtype)
        parameter.requires_grad_(name.endswith((".u", ".v")))
    return made


def with_factors_like(made: CausalModel, module: CausalModel) -> CausalModel:
    names = [n.removesuffix(".u") for n, _ in module.named_parameters() if n.endswith(".u")]
    return with_factors(made, names)


@pytest.mark.parametrize(("family", "precision"), [(f, p) for f in FAMILIES for p in PRECISIONS])
def test_gate_passes(family: str, precision: Precision, tmp_path: Path) -> None:
    manifest = export_artifact(small_cut(family, precision), step_of(small_cut(family, precision)), tmp_path / "a")
    assert (manifest.format, manifest.parity.tolerance <= 1e-4) == ("onnx_language", True)
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_the_whole_module_in_torch(family: str) -> None:
    module = small_cut(family, patterns=EVERYWHERE)
    spec = step_of(module)
    files, values = values_of(module, spec)
    values["target"][0, :5] = -100
    torch_model = dense(module, values, torch.float64)
    loss = F.cross_entropy(torch_model(torch.from_numpy(values["input"])), torch.from_numpy(values["target"]))
    loss.backward()
    exact = {n: p.grad.numpy() for n, p in torch_model.named_parameters() if p.grad is not None}
    outputs = GraphSession(files["train.onnx"], [f"grad:{n}" for n in exact], set_options=ask_for_file_order).run(
        values
    )
    assert float(outputs["loss"]) == pytest.approx(float(loss.detach()), rel=1e-6)
    largest = max(np.abs(value).max() for value in exact.values())
    for name, value in exact.items():
        error = np.abs(outputs[f"grad:{name}"] - value).max() / max(np.abs(value).max(), 1e-4 * largest)
        assert error <= 3e-5, name


@pytest.mark.parametrize("family", FAMILIES)
def test_eight_steps_beside_torch(family: str) -> None:
    module = small_cut(family)
    spec = step_of(module, optimizer=Optimizer(kind="adamw"), clip_norm=True)
    files, values = values_of(module, spec)
    values |= {"clip_norm": np.array(0.1, np.float32)}
    model = dense(module, values, torch.float32)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.002, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    x, y = (torch.from_numpy(values[name]) for name in ("input", "target"))
    session, feeds = GraphSession(files["train.onnx"], set_options=ask_for_file_order), dict(values)
    for _ in range(8):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 0.1)
        optimizer.step()
        outputs = session.run(feeds)
        feeds |= {n.removeprefix("next:"): v for n, v in outputs.items() if n.startswith("next:")}
        assert float(outputs["loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)


@pytest.mark.parametrize(
    "choice",
    [
        {"optimizer": Optimizer(momentum=True, nesterov=True)},
        {"optimizer": Optimizer(momentum=False, weight_decay=False), "clip_norm": True},
        {"optimizer": Optimizer(kind="adam")},
        {"micro_batches": 2, "clip_norm": True},
    ],
    ids=["nesterov", "clipped", "adam", "micro-batches"],
)
def test_gate_holds_update_rules(choice: dict[str, object], tmp_path: Path) -> None:
    module = small_cut("gpt2")
    manifest = export_artifact(module, step_of(module, **choice), tmp_path / "a")
    assert verify_artifact(tmp_path / "a", module) == manifest.parity


def test_nothing_below_the_first_trained_factor_has_a_backward_pass() -> None:
    whole, upper = (OnnxLanguage().write(m, step_of(m)) for m in (small_cut("llama"), small_cut("llama", blocks=[1])))
    graph = onnx.load_from_string(upper.files["train.onnx"]).graph
    assert not [node.name for node in graph.node if node.name.startswith("blocks.0/") and "forward" not in node.name]
    assert upper.work is not None
    assert whole.work is not None
    assert upper.work.matrix_macs < 0.75 * whole.work.matrix_macs


def test_frozen_v_gets_no_gradient_and_the_gate_passes(tmp_path: Path) -> None:
    module = small_cut("qwen2", blocks=[1])
    frozen = [n for n, _ in module.named_parameters() if n.endswith(".v")]
    manifest = export_artifact(module, step_of(module, frozen=frozen), tmp_path / "a")
    assert {t.name for t in manifest.specs("frozen")} == set(frozen)
    assert all(t.name.endswith(".u") for t in manifest.specs("parameter"))


def test_wrong_graph_is_refused() -> None:
    module = small_cut("gpt2")
    spec = step_of(module)
    written = OnnxLanguage().write(module, spec)
    model = onnx.load_from_string(written.files["train.onnx"])
    softmax = next(n for n in model.graph.node if n.op_type == "Softmax" and "again" in n.name)
    softmax.op_type = "Sigmoid"
    del softmax.attribute[:]
    files = {**written.files, "train.onnx": model.SerializeToString()}
    with pytest.raises(ParityError, match="gradients of one step"):
        OnnxLanguage().check(module, spec, files, written.programs, written.tensors)


@pytest.mark.parametrize("runtime", ["executorch", "onnxruntime_training", "onnxruntime_web"])
def test_other_runtimes_refuse_with_the_reason(runtime: str, tmp_path: Path) -> None:
    module = small_cut("gpt2")
    with pytest.raises(ExportRefused, match=f"{runtime} trains no language model: .*runtime onnxruntime"):
        export_artifact(module, step_of(module), tmp_path / "a", runtime=runtime)


def test_trained_base_is_refused(tmp_path: Path) -> None:
    module = small_cut("qwen2")
    spec = step_of(module)
    loose = StepSpec(**{f: getattr(spec, f) for f in spec.__struct_fields__} | {"frozen": spec.frozen[1:]})
    with pytest.raises(ExportRefused, match=r"embedding\.weight.*mapped and never written"):
        export_artifact(module, loose, tmp_path / "a")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_held_is_what_specs_say(precision: Precision) -> None:
    module = small_cut("gemma3", precision)
    shapes = matrices(module)
    generator = np.random.default_rng(0)
    for name, shape in shapes.items():
        value = generator.standard_normal(shape).astype(np.float32)
        kept = held(name, value, precision)
        expected = {s.name: (s.shape, s.dtype) for s in base_specs(module) if s.name.partition("#")[0] == name}
        assert {n: (v.shape, v.dtype.name) for n, v in kept.items()} == expected
        bound = {"float32": 0.0, "float16": 3e-3, "int8": 0.02, "int4": 0.4}[precision]
        assert np.abs(dequantised(name, kept) - value).max() <= bound


def mapped_session(folder: Path) -> tuple[ArtifactManifest, onnxruntime.OnnxSession, dict[str, np.ndarray]]:
    """An exported artifact on a device's session, and formula values of what it reads."""
    module = small_cut("llama", blocks=[1])
    export_artifact(module, step_of(module), folder / "a")
    manifest, files = read_artifact_folder(folder / "a")
    session = onnxruntime.load(manifest, files, threads=1)
    values = gate_values(step_of(module), manifest.tensors, masked=False)
    state = {s.name for s in manifest.specs("parameter", "frozen")}
    (folder / "weights").write_bytes(encode_tensors({n: v for n, v in values.items() if n in state}))
    base = {s.name for s in manifest.specs("mapped")}
    (folder / "base").write_bytes(encode_tensors({n: v for n, v in values.items() if n in base}))
    return manifest, session, values


def test_session_maps_the_base_and_gives_the_manifests_losses(tmp_path: Path) -> None:
    manifest, session, values = mapped_session(tmp_path)
    session.load_state(WeightsFile(tmp_path / "weights", where="weights", constants=tmp_path / "base"))
    feeds = {n: values[n] for n in manifest.program("train").inputs if n in ("input", "target")}
    feeds |= {s.name: values[s.name] for s in manifest.specs("hyper")}
    losses = [session.run("train", feeds)["loss"] for _ in range(3)]
    assert losses == pytest.approx(manifest.self_test.losses, rel=1e-6)
    sums = session.run("eval", feeds)
    assert sums["sum:positions"] == values["target"].size
    assert sums["loss"] < losses[0] * len(values["input"])
    assert check_self_test(session, manifest, steps=3) <= 1e-6


def test_other_base_is_refused_by_name(tmp_path: Path) -> None:
    manifest, session, _ = mapped_session(tmp_path)
    wrong = {s.name: np.zeros(s.shape, s.dtype) for s in manifest.specs("mapped")}  # type: ignore[arg-type]
    wrong["norm.weight"] = np.zeros(65, np.float32)
    (tmp_path / "base").write_bytes(encode_tensors(wrong))
    with pytest.raises(ArtifactCorrupt, match=r"base: 'norm\.weight' is float32\[65\], the artifact maps .*\[64\]"):
        session.load_state(WeightsFile(tmp_path / "weights", where="weights", constants=tmp_path / "base"))
    with pytest.raises(
        ArtifactCorrupt, match=r"holds no tensor 'blocks\.0\.attention_norm\.weight' that the artifact maps"
    ):
        session.load_state(WeightsFile(tmp_path / "weights", where="weights"))


def test_every_number_of_examples_runs_in_the_same_graph() -> None:
    module = small_cut("gemma3")
    spec = step_of(module)
    files, values = values_of(module, spec)
    session = GraphSession(files["eval.onnx"], set_options=ask_for_file_order)
    whole = session.run(values)
    parts = [session.run(values | {n: values[n][i : i + 1] for n in ("input", "target")}) for i in range(4)]
    for name in ("loss", "sum:entropy", "sum:positions"):
        assert float(whole[name]) == pytest.approx(sum(float(part[name]) for part in parts), rel=1e-5)
    assert values["input"].shape == (4, LENGTH)


def test_reference_of_adams_decay_rounds_as_graphs_do() -> None:
    module = small_cut("gpt2")
    spec = step_of(module, optimizer=Optimizer(kind="adam"))
    name = next(n for n, _ in module.named_parameters() if n.endswith(".u"))
    value = np.linspace(0.05, 0.06, 1000, dtype=np.float32)
    hyper = {n: np.array(v, np.float32) for n, v in {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}.items()}
    hyper["weight_decay"] = np.array(0.01, np.float32)
    rule = UpdateReference(spec, {name: torch.from_numpy(value.copy())}, hyper)
    moved = rule.step({name: -(value * hyper["weight_decay"])})[name]
    np.testing.assert_array_equal(moved, value)  # a fused product and sum leaves what was rounded, and Adam enlarges it

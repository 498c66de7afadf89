"""Steps that read features of the frozen blocks: the gate, what is in each program, and the same bits on a device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest

from edge.contracts.errors import ParityError
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import BlobRef, Schedule, WorkOrder
from edge.contracts.tensor_file import encode_tensors
from edge.runtimes.onnxruntime import session as onnxruntime
from edge.runtimes.weights_file import WeightsFile
from edge.training.artifact_folder import read_artifact_folder
from edge.training.batches import Examples
from edge.training.feature_cache.artifact import features_key, kept_bytes
from edge.training.feature_cache.folder import open_records
from edge.training.feature_cache.source import frozen_bytes
from edge.training.local_data import LocalData
from edge.training.self_test import check_self_test
from edge.training.steps import Outcome, train
from export.bundle import artifact_key, export_artifact, verify_artifact
from export.formats.onnx_language.format import OnnxLanguage
from export.gate_values import gate_values
from export.language.causal_model import CausalModel
from export.parity import one_thread
from export.training_step import Optimizer, StepSpec, step_values
from tests.edge.tiny_artifact import tiny_job
from tests.export.language.models import FAMILIES, LENGTH, small_cut, step_of

EXAMPLES, VOCABULARY = 10, 97


@pytest.fixture(autouse=True)
def _on_one_thread() -> Iterator[None]:
    with one_thread():
        yield


def upper(family: str = "gpt2", *, features: str = "float32", **choice: Any) -> tuple[CausalModel, StepSpec]:
    """Factors in the upper of two blocks alone."""
    module = small_cut(family, blocks=[1])
    return module, msgspec.structs.replace(step_of(module, **choice), cached_features=features)


@pytest.mark.parametrize(("family", "features"), [(f, t) for f in FAMILIES for t in ("float32", "float16")])
def test_gate_passes(family: str, features: str, tmp_path: Path) -> None:
    module, step = upper(family, features=features)
    manifest = export_artifact(module, step, tmp_path / "a")
    assert [p.name for p in manifest.programs] == ["train", "features", "eval"]
    (spec,) = manifest.specs("features")
    assert (spec.shape, spec.dtype) == (("batch", LENGTH, 64), features)
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance <= 1e-4
    assert verify_artifact(tmp_path / "a", module) == manifest.parity


def test_gate_passes_by_micro_batches(tmp_path: Path) -> None:
    module, step = upper(micro_batches=2, optimizer=Optimizer(kind="adamw"), clip_norm=True)
    manifest = export_artifact(module, step, tmp_path / "a")
    assert "features" in manifest.program("accumulate").inputs
    assert "features" not in manifest.program("train").inputs


def test_frozen_blocks_run_in_one_program_and_trained_ones_in_the_other() -> None:
    module, step = upper("llama")
    written = OnnxLanguage().write(module, step)
    nodes = {n: [node.name for node in onnx.load_from_string(f).graph.node] for n, f in written.files.items()}
    assert not [name for name in nodes["train.onnx"] if name.startswith(("embedding", "blocks.0/"))]
    assert not [name for name in nodes["features.onnx"] if name.startswith(("blocks.1/", "norm", "head"))]
    inputs = {p.name: p.inputs for p in written.programs}
    assert "input" not in inputs["train"]
    plain = OnnxLanguage().write(module, msgspec.structs.replace(step, cached_features=""))
    assert written.work is not None
    assert plain.work is not None
    assert written.work.matrix_macs < 0.8 * plain.work.matrix_macs


def test_cut_that_trains_the_first_block_is_written_as_ever() -> None:
    module = small_cut("gpt2")
    step = step_of(module)
    cached = msgspec.structs.replace(step, cached_features="float32")
    assert OnnxLanguage().write(module, cached).files == OnnxLanguage().write(module, step).files


def test_step_without_features_keeps_its_key() -> None:
    module, step = upper()
    plain = msgspec.structs.replace(step, cached_features="")
    assert "cached_features" not in step_values(plain)
    assert artifact_key(module, plain) != artifact_key(module, step)


def test_wrong_features_are_refused() -> None:
    module, step = upper()
    written = OnnxLanguage().write(module, step)
    model = onnx.load_from_string(written.files["features.onnx"])
    next(n for n in model.graph.node if n.op_type == "Softmax").op_type = "LogSoftmax"
    files = {**written.files, "features.onnx": model.SerializeToString()}
    with pytest.raises(ParityError, match="program features: 'features' is"):
        OnnxLanguage().check(module, step, files, written.programs, written.tensors)


@dataclass
class Device:
    """A session with its base mapped, that counts the examples it computes features of."""

    manifest: ArtifactManifest
    session: onnxruntime.OnnxSession
    weights: WeightsFile
    order: WorkOrder
    examples: Examples
    computed: int = 0

    def trained(self, folder: Path | None, *, limit: int = 10**7, **changes: Any) -> tuple[Outcome, list[bytes]]:
        """What an order of two epochs comes to, and the factors it leaves."""
        self.session.load_state(self.weights)
        order = msgspec.structs.replace(self.order, **changes)
        kept = None
        if folder is not None:
            key = features_key(self.manifest, order, partial(frozen_bytes, self.session), "here")
            kept = open_records(
                folder, key, kept_bytes(self.manifest), examples=self.examples.in_data, limit_bytes=limit
            )
        compute, self.computed = self.session.compute, 0

        def counted(program: str, feeds: Any) -> dict[str, np.ndarray]:
            self.computed += len(feeds["input"])
            return compute(program, feeds)

        self.session.compute = counted  # type: ignore[method-assign]
        outcome = train(self.session, self.manifest, order, self.examples, kept_features=kept)
        self.session.compute = compute  # type: ignore[method-assign]
        return outcome, [self.session.read(s.name).tobytes() for s in self.manifest.specs("parameter")]


def device(folder: Path, **choice: Any) -> Device:
    module, step = upper(**choice)
    export_artifact(module, step, folder / "a")
    manifest, files = read_artifact_folder(folder / "a")
    values = gate_values(step, manifest.tensors, masked=False)
    for name, roles in (("weights", ("parameter", "frozen")), ("base", ("mapped",))):
        (folder / name).write_bytes(encode_tensors({s.name: values[s.name] for s in manifest.specs(*roles)}))  # type: ignore[arg-type]
    drawn = np.random.default_rng(3).integers(0, VOCABULARY, (2, EXAMPLES, LENGTH))
    order = msgspec.structs.replace(
        tiny_job().order,
        schedule=Schedule(epochs=2),
        batch=4,
        hyper={"lr": 0.05, "momentum": 0.9, "weight_decay": 0.0},
        constants=BlobRef("ab" * 32, 1, "raw", 1),
    )
    return Device(
        manifest,
        onnxruntime.load(manifest, files, threads=1),
        WeightsFile(folder / "weights", where="weights", constants=folder / "base"),
        order,
        Examples(LocalData("here", drawn[0], drawn[1]), manifest),
    )


def same(first: tuple[Outcome, list[bytes]], second: tuple[Outcome, list[bytes]]) -> bool:
    return (first[0].loss, first[0].steps, first[1]) == (second[0].loss, second[0].steps, second[1])


@pytest.mark.parametrize("choice", [{}, {"micro_batches": 2}, {"features": "float16"}], ids=["plain", "micro", "half"])
def test_kept_features_give_the_same_bits_and_are_computed_once(choice: dict[str, Any], tmp_path: Path) -> None:
    on = device(tmp_path, **choice)
    bare = on.trained(None)
    assert on.computed == 16  # two epochs of two batches of four
    first = on.trained(tmp_path / "kept", data_seed=5)
    assert 8 <= on.computed <= EXAMPLES
    again = on.trained(tmp_path / "kept", data_seed=5)
    assert on.computed == 0
    assert same(first, again)
    assert same(bare, on.trained(tmp_path / "kept"))
    assert same(bare, on.trained(tmp_path / "kept", limit=3 * 4 * LENGTH * 64))


def test_kept_features_give_the_bits_of_a_step_without_them(tmp_path: Path) -> None:
    on, plain = device(tmp_path), device(tmp_path / "plain", features="")
    assert "features" not in [program.name for program in plain.manifest.programs]
    whole = plain.trained(None)
    for _ in range(2):
        assert same(whole, on.trained(tmp_path / "kept"))
    assert check_self_test(on.session, on.manifest, steps=3) <= 1e-6
    assert on.manifest.self_test.losses == plain.manifest.self_test.losses


def test_float16_moves_the_trained_factors_by_rounding_alone(tmp_path: Path) -> None:
    found = []
    for features in ("float32", "float16"):
        on = device(tmp_path / features, features=features)
        on.trained(None)
        names = [spec.name for spec in on.manifest.specs("parameter")]
        found.append({name: on.session.read(name) - on.weights[name] for name in names})
    largest = max(np.abs(move).max() for move in found[0].values())
    assert max(np.abs(found[0][n] - found[1][n]).max() for n in found[0]) <= 2e-3 * largest


def test_factors_that_are_frozen_below_are_in_the_key_and_in_the_program(tmp_path: Path) -> None:
    module = small_cut("gpt2")
    frozen = [n for n, _ in module.named_parameters() if n.startswith("blocks.0.") and n.endswith((".u", ".v"))]
    step = msgspec.structs.replace(step_of(module, frozen=frozen), cached_features="float32")
    manifest = export_artifact(module, step, tmp_path / "a")
    assert set(frozen) <= set(manifest.program("features").inputs)
    assert not set(frozen) & set(manifest.program("train").inputs)

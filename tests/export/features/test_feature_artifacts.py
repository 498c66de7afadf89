"""Steps of image models that begin at features: the gate over the whole network, refusals, and bits on a device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from torch import Tensor, nn

from edge.contracts.errors import ExportRefused, ParityError
from edge.contracts.manifest import ArtifactManifest
from edge.training.feature_cache.artifact import kept_bytes
from edge.training.self_test import check_self_test
from export.bundle import artifact_key, export_artifact, verify_artifact
from export.formats.onnx_step.format import OnnxStep
from export.parity import one_thread
from export.training_step import Optimizer
from tests.export.features.device import BATCH, EXAMPLES, device
from tests.export.features.networks import CLASSES, IMAGE, GroupOfTwo, Residual, frozen_step

CHOICES: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "sgd": (nn.BatchNorm2d, {}),
    "adamw-clip": (nn.BatchNorm2d, {"optimizer": Optimizer(kind="adamw"), "clip_norm": True}),
    "batch-norms": (nn.BatchNorm2d, {"norm": "batch"}),
    "micro-batches": (GroupOfTwo, {"micro_batches": 2}),
    "recompute": (nn.BatchNorm2d, {"recompute": True}),
    "proximal": (nn.BatchNorm2d, {"proximal": True}),
}


@pytest.fixture(autouse=True)
def _on_one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOICES)
def test_gate_holds_the_step_to_torch_over_the_whole_network(name: str, tmp_path: Path) -> None:
    norm, choice = CHOICES[name]
    module = Residual(norm)
    manifest = export_artifact(module, frozen_step(module, "stem", "blocks.0", **choice), tmp_path / "a")
    assert manifest.program("features").inputs[-1] == "input"
    stepped = "accumulate" if choice.get("micro_batches") else "train"
    assert "input" not in manifest.program(stepped).inputs
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance <= 1e-3
    assert manifest.cost.step_work is not None
    plain = OnnxStep().write(module, frozen_step(module, "stem", "blocks.0", features="", **choice)).work
    assert plain is not None
    assert manifest.cost.step_work.convolution_macs < 0.8 * plain.convolution_macs
    assert verify_artifact(tmp_path / "a", module) == manifest.parity


def test_wrong_features_are_refused() -> None:
    module = Residual()
    step = frozen_step(module, "stem", "blocks.0")
    written = OnnxStep().write(module, step)
    model = onnx.load_from_string(written.files["features.onnx"])
    next(n for n in model.graph.node if n.op_type == "Relu").op_type = "Sigmoid"
    files = {**written.files, "features.onnx": model.SerializeToString()}
    with pytest.raises(ParityError, match="gradients of one step"):
        OnnxStep().check(module, step, files, written.programs, written.tensors)


def test_frozen_layer_that_mixes_examples_is_refused(tmp_path: Path) -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low, self.high = nn.Linear(72, 8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.high(self.low(x.flatten(1)).softmax(0))
            return logits

    module = Mixing()
    with pytest.raises(ParityError, match="without the others of its batch; a frozen layer mixes examples"):
        export_artifact(module, frozen_step(module, "low"), tmp_path / "a")


def test_frozen_norm_of_the_batch_is_refused_by_name_with_the_next_step(tmp_path: Path) -> None:
    module = Residual()
    step = frozen_step(module, "stem", "blocks.0", frozen_norm="batch")
    with pytest.raises(ExportRefused, match=r"blocks\.0\.norm1.*statistics of a batch.*frozen-norm = \"static\""):
        export_artifact(module, step, tmp_path / "a")


def test_random_augmentation_is_refused(tmp_path: Path) -> None:
    module = Residual()
    step = frozen_step(module, "stem", input=msgspec.structs.replace(IMAGE, augment=("flip",)))
    with pytest.raises(ExportRefused, match=r"changed at random \(flip\), so their features are other ones"):
        export_artifact(module, step, tmp_path / "a")


def test_runtime_that_gives_no_features_is_refused(tmp_path: Path) -> None:
    module = Residual()
    with pytest.raises(ExportRefused, match=r"cannot carry features of frozen .*runtime onnxruntime or executorch"):
        export_artifact(module, frozen_step(module, "stem"), tmp_path / "a", runtime="onnxruntime_web")


@pytest.mark.slow
def test_type_is_in_the_manifest_and_the_key_where_devices_round(tmp_path: Path) -> None:
    module = Residual()
    steps = {kind: frozen_step(module, "stem", features=kind) for kind in ("float32", "float16", "int8")}
    assert len({artifact_key(module, step) for step in steps.values()}) == 3
    manifest = export_artifact(module, steps["int8"], tmp_path / "a")
    assert manifest.features_kept_as == "int8"
    assert ArtifactManifest.from_bytes(manifest.to_bytes()).features_kept_as == "int8"
    assert kept_bytes(manifest) == 8 + 4 * 36
    assert b"features_kept_as" not in export_artifact(module, steps["float32"], tmp_path / "b").to_bytes()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


@pytest.mark.slow
def test_kept_features_give_the_bits_of_the_whole_step_and_are_computed_once(folders: Path, tmp_path: Path) -> None:
    on, plain = device(folders), device(folders, "")
    whole = plain.trained()
    assert on.trained() == whole
    assert on.computed == 4 * BATCH
    assert on.trained(tmp_path / "kept") == whole
    assert BATCH < on.computed <= EXAMPLES
    assert on.trained(tmp_path / "kept") == whole
    assert on.computed == 0
    assert on.trained(tmp_path / "kept", limit=3 * 4 * 4 * 36) == whole  # room for two examples
    assert check_self_test(on.session, on.manifest, steps=3) <= 1e-5


@pytest.mark.slow
def test_kept_features_go_by_micro_batches(folders: Path, tmp_path: Path) -> None:
    on, plain = (device(folders, f, of=GroupOfTwo, micro_batches=2) for f in ("float32", ""))
    assert on.trained(tmp_path / "kept") == plain.trained()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "allowed"), [("float16", 2e-3), ("int8", 2e-2)])
def test_rounded_features_move_what_is_trained_by_rounding_alone(
    kind: str, allowed: float, folders: Path, tmp_path: Path
) -> None:
    exact, rounded = device(folders), device(folders, kind)
    moved = []
    for on in (exact, rounded):
        on.trained()
        moved.append({s.name: on.session.read(s.name) - on.weights[s.name] for s in on.manifest.specs("parameter")})
    largest = max(np.abs(move).max() for move in moved[0].values())
    off = max(np.abs(moved[0][name] - moved[1][name]).max() for name in moved[0])
    assert 0 < off <= allowed * largest
    bare = rounded.trained()
    assert rounded.trained(tmp_path / "kept") == bare  # rounded whether they are kept or not
    assert rounded.trained(tmp_path / "kept") == bare


def test_other_frozen_values_have_other_features(folders: Path, tmp_path: Path) -> None:
    on = device(folders)
    on.trained(tmp_path / "kept")
    on.weights["stem.weight"] = on.weights["stem.weight"] + 1
    on.trained(tmp_path / "kept")
    assert on.computed > BATCH
    assert len(list((tmp_path / "kept").iterdir())) == 2
    on.weights["head.weight"] = on.weights["head.weight"] + 1
    on.trained(tmp_path / "kept")
    assert on.computed == 0

"""What has no training step is refused by the name of its layer, and a wrong graph never leaves the gate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from edge.contracts.errors import ArtifactCorrupt, ConfigError, ExportRefused, ParityError
from edge.contracts.manifest import InputSpec
from export.bundle import artifact_key, export_artifact, read_artifact, verify_artifact
from export.formats import format_for
from export.training_step import FactorPair, Optimizer, StepSpec
from tests.export.modules import Apply

FEATURES = InputSpec(layout="features", shape=(12,))
STEP = StepSpec(input=FEATURES, classes=3, batch=4)


def with_layer(layer: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 8), layer, nn.Linear(8, 3))


class KeepsState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(0.5)
        return x * self.weight


class Averages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x - self.mean


class Replaces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


_WINDOWS = nn.Sequential(nn.Unflatten(1, (1, 2, 4)), nn.FractionalMaxPool2d(1, output_size=(2, 4)), nn.Flatten())
REFUSED: dict[str, tuple[nn.Module, str, str]] = {
    "dropout-in-evaluation": (Apply(lambda x: nn.functional.dropout(x, 0.3)), "1", r"evaluation too.*self\.training"),
    "noise-in-evaluation": (Apply(lambda x: x + torch.randn_like(x)), "1", "evaluation too"),
    "drawn-windows": (_WINDOWS, "1.1", "MaxPool2d"),
    "data-dependent-branch": (Apply(lambda x: x if bool(x.sum() > 0) else -x), "1", "torch.where"),
    "data-dependent-shape": (Apply(lambda x: x * x[x > 0].sum()), "1", "torch.where"),
    "unknown-operation": (Apply(lambda x: torch.linalg.qr(x @ x.t())[0] @ x), "1", "linalg_qr"),
    "sorted": (Apply(lambda x: x.sort(1).values), "1", "sort"),
    "double": (Apply(lambda x: x.double().float()), "1", "float32"),
    "written-parameter": (KeepsState(), "1", "weight.*in place"),
    "written-buffer": (Averages(), "1", "in place"),
    "replaced-buffer": (Replaces(), "1", "mean"),
    "cumulative-batch-norm": (nn.BatchNorm1d(8, momentum=None), "1", "momentum"),
    "synchronised-batch-norm": (nn.SyncBatchNorm(8), "1", "several processes.*BatchNorm"),
    "spectral-norm": (
        nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
        "1.parametrizations.weight.0",
        "_[uv]' in place.*weight norm",
    ),
    "spectral-norm-hook": (nn.utils.spectral_norm(nn.Linear(8, 8)), "1", "'1.weight_[uv]' in place.*weight norm"),
    "fixed-batch": (Apply(lambda x: x.reshape(4, 8) if x.shape[0] == 4 else x[:4] + x[:1]), "", "logits"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_layer_without_a_step_is_refused_by_name(name: str, tmp_path: Path) -> None:
    layer, path, word = REFUSED[name]
    with pytest.raises(ExportRefused, match=word) as error:
        export_artifact(with_layer(layer), STEP, tmp_path / "artifact")
    assert error.value.layer == (path or "(the module itself)")
    assert error.value.exit_code == 2
    assert not (tmp_path / "artifact").exists()


def test_layer_without_a_backward_pass_is_refused_by_its_own_name(tmp_path: Path) -> None:
    """The layer before it is what its backward pass reads first."""
    layers = [nn.Unflatten(1, (1, 2, 2, 3)), nn.Conv3d(1, 4, 3, padding=1), nn.MaxPool3d(2, 1), nn.Flatten()]
    with pytest.raises(ExportRefused, match="max_pool3d") as error:
        export_artifact(nn.Sequential(*layers, nn.Linear(8, 3)), STEP, tmp_path / "artifact")
    assert error.value.layer == "2"


def test_dropout_of_zero_is_taken(tmp_path: Path) -> None:
    assert export_artifact(with_layer(nn.Dropout(0.0)), STEP, tmp_path / "artifact").classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"frozen": ("9.weight",)}, "9.weight"),
        ({"frozen": ("0.weight", "0.bias", "2.weight", "2.bias")}, "all 4 parameters"),
        ({"frozen": ("0.weight",), "squared_gradient": ("0.weight",)}, "0.weight"),
        ({"frobenius": (FactorPair("0.weight", "2.weight"),)}, "do not share a rank"),
    ],
)
def test_impossible_step_is_refused(changes: dict[str, object], word: str, tmp_path: Path) -> None:
    spec = StepSpec(input=FEATURES, classes=3, batch=4, **changes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=word):
        export_artifact(with_layer(nn.ReLU()), spec, tmp_path / "artifact")


def test_nesterov_without_momentum_is_refused() -> None:
    with pytest.raises(ValueError, match="nesterov"):
        Optimizer(momentum=False, nesterov=True)


def test_unknown_runtime_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="onnxruntime"):
        format_for("abacus")


def flipped(data: bytes, change: str) -> bytes:
    """The graph with one mistake of the kind a translation table could make."""
    model = onnx.load_from_string(data)
    nodes = {node.output[0]: node for node in model.graph.node}
    if change.startswith("no-decay of "):
        decayed = ["weight_decay", change.removeprefix("no-decay of ")]
        (node,) = [n for n in model.graph.node if list(n.input) == decayed]
        node.input[0] = "zero"
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0, np.float32), "zero"))
    elif change == "no-momentum":  # shows in a later step only: slots are zero in the first
        for node in model.graph.node:
            node.input[:] = ["zero" if name == "momentum" else name for name in node.input]
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0, np.float32), "zero"))
    elif change == "ascent":
        nodes["next:0.weight"].op_type = "Add"
    elif change == "gradient":
        gradient = nodes["grad:2.weight"]
        gradient.output[0] = "unscaled"
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1.001, np.float32), "slip"))
        at = list(model.graph.node).index(gradient)
        model.graph.node.insert(at + 1, onnx.helper.make_node("Mul", ["unscaled", "slip"], ["grad:2.weight"]))
    elif change == "buffer":
        nodes["next:1.running_var"].op_type = "Sub"
    return bytes(model.SerializeToString())


DECAYED = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [*(f"no-decay of {name}" for name in DECAYED), "no-momentum", "ascent", "gradient", "buffer"]
)
def test_gate_refuses_a_corrupted_graph(change: str, tmp_path: Path) -> None:
    module = with_layer(nn.BatchNorm1d(8))
    export_artifact(module, STEP, tmp_path / "artifact")
    manifest, files = read_artifact(tmp_path / "artifact")
    files["train.onnx"] = flipped(files["train.onnx"], change)
    with pytest.raises(ParityError, match="torch float64"):
        format_for("onnxruntime").check(module, STEP, files, manifest.programs, manifest.tensors)


def test_flipped_byte_is_found_by_its_digest(tmp_path: Path) -> None:
    module = with_layer(nn.ReLU())
    export_artifact(module, STEP, tmp_path / "artifact")
    path = tmp_path / "artifact" / "train.onnx"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ArtifactCorrupt, match=r"train\.onnx has digest"):
        verify_artifact(tmp_path / "artifact", module)


def test_another_module_fails_verification(tmp_path: Path) -> None:
    export_artifact(with_layer(nn.ReLU()), STEP, tmp_path / "artifact")
    with pytest.raises(ParityError, match="gradients of one step"):
        verify_artifact(tmp_path / "artifact", with_layer(nn.Tanh()))


def test_full_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "artifact").mkdir()
    (tmp_path / "artifact" / "mine").write_text("keep")
    with pytest.raises(FileExistsError, match="not empty"):
        export_artifact(with_layer(nn.ReLU()), STEP, tmp_path / "artifact")
    assert [p.name for p in tmp_path.iterdir()] == ["artifact"]


def test_key_depends_on_everything_but_weights() -> None:
    base = artifact_key(with_layer(nn.ReLU()), STEP)
    torch.manual_seed(1)
    assert artifact_key(nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)), STEP) == base
    others = [
        artifact_key(with_layer(nn.Tanh()), STEP),
        artifact_key(with_layer(nn.LeakyReLU(0.1)), STEP),
        artifact_key(with_layer(nn.ReLU()), StepSpec(input=FEATURES, classes=3, batch=5)),
        artifact_key(with_layer(nn.ReLU()), StepSpec(input=FEATURES, classes=3, batch=4, clip_norm=True)),
        artifact_key(with_layer(nn.ReLU()), STEP, build={"cut": "fedhm:4"}),
    ]
    assert len({base, *others}) == 6


@pytest.mark.slow
def test_export_is_deterministic(tmp_path: Path) -> None:
    one, two = (export_artifact(with_layer(nn.BatchNorm1d(8)), STEP, tmp_path / n) for n in ("one", "two"))
    assert one.to_bytes() == two.to_bytes()

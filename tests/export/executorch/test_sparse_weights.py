"""Masked weights held as kept entries: kernels against torch on awkward masks, steps against torch, bad masks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from coordinator.simulation.torch_session import TorchArtifact
from edge.contracts.errors import ArtifactCorrupt, DeviceRefused, ExportRefused
from edge.contracts.manifest import ArtifactManifest, InputSpec
from edge.contracts.packing import KEPT, MASK, kept_values, pack_mask
from edge.contracts.tensor_file import encode_tensors
from edge.contracts.tensors import TensorSpec
from edge.runtimes import runtime
from edge.runtimes.base import Session
from edge.runtimes.executorch.library import NativeProgram
from edge.runtimes.weights_file import WeightsFile
from edge.training.artifact_folder import read_artifact_folder
from edge.training.self_test import check_self_test
from export.bundle import export_artifact, verify_artifact
from export.capture import Capture
from export.formats.executorch_program.lowering import lower
from export.parity import STEPS as GATE_STEPS
from export.training_step import Optimizer, SparseWeight, StepSpec

pytestmark = pytest.mark.runtime

ATEN = torch.ops.aten
MASKS = {
    "few": lambda shape, draw: draw(shape) < 0.1,
    "most": lambda shape, draw: draw(shape) < 0.8,
    "none": lambda shape, _: np.zeros(shape, bool),
    "all": lambda shape, _: np.ones(shape, bool),
    "empty rows and columns": lambda shape, draw: (
        (draw(shape) < 0.4)
        & (draw((shape[0], *[1] * (len(shape) - 1))) < 0.5)
        & (draw((1, shape[1], *[1] * (len(shape) - 2))) < 0.5)
    ),
}
SPARE = 7
"""Room beyond what a mask keeps."""


def run_native(
    function: object, inputs: dict[str, Tensor], mask: np.ndarray, folder: Path
) -> tuple[list[np.ndarray], np.ndarray]:
    """(All outputs but the last as flat arrays, the last, which is the gradient of ``w``, as [capacity])."""
    capacity = int(mask.sum()) + SPARE
    graph = make_fx(function)(*inputs.values())  # type: ignore[arg-type]
    specs = tuple(
        TensorSpec(n, tuple(x.shape), "float32", "input", capacity if n == "w" else 0) for n, x in inputs.items()
    )
    names = ("y", "dx", "grad:w")
    path = folder / "program.pte"
    path.write_bytes(lower(Capture(graph, specs, names, ()), names, batch=1).data)
    flat = mask.reshape(mask.shape[0], -1)
    starts = np.concatenate([[0], np.cumsum(flat.sum(1))]).astype(np.int32)
    columns, values = np.zeros(capacity, np.int32), np.zeros(capacity, np.float32)
    columns[: starts[-1]] = np.nonzero(flat)[1]
    values[: starts[-1]] = inputs["w"].numpy()[mask]
    given: list[np.ndarray] = []
    for name, value in inputs.items():
        given += [values, starts, columns] if name == "w" else [np.ascontiguousarray(value.numpy())]
    program = NativeProgram(path)
    program.run(given)
    return [program.output(i, (-1,)).copy() for i in (0, 1)], program.output(2, (-1,)).copy()


def assert_agrees(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max(initial=0.0) <= 2e-5 * max(np.abs(expected).max(initial=0.0), 1e-6)


def compare(function: object, inputs: dict[str, Tensor], mask: np.ndarray, folder: Path) -> None:
    inputs["w"] = inputs["w"] * torch.from_numpy(mask)
    expected = [value.numpy() for value in function(*inputs.values())]  # type: ignore[operator]
    (y, dx), dw = run_native(function, inputs, mask, folder)
    assert_agrees(y, expected[0].reshape(-1))
    assert_agrees(dx, expected[1].reshape(-1))
    assert_agrees(dw[: mask.sum()], expected[2][mask])
    assert not dw[mask.sum() :].any()


@pytest.mark.slow
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("rows", [1, 20, 70])
def test_linear_kernels_agree_with_torch(kind: str, rows: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    mask = MASKS[kind]((37, 83), np.random.default_rng(1).random)
    inputs = {"x": torch.randn(rows, 83), "w": torch.randn(37, 83), "b": torch.randn(37), "dy": torch.randn(rows, 37)}
    compare(
        lambda x, w, b, dy: [torch.addmm(b, x, w.permute(1, 0)), dy @ w, dy.permute(1, 0) @ x], inputs, mask, tmp_path
    )


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("images", "kernel", "padding", "dilation"), [(3, 5, 2, 1), (26, 3, 0, 1), (9, 3, 1, 2)])
def test_convolution_kernels_agree_with_torch(
    kind: str, images: int, kernel: int, padding: int, dilation: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    mask = MASKS[kind]((6, 4, kernel, kernel), np.random.default_rng(1).random)
    window = ([1, 1], [padding, padding], [dilation, dilation], False, [0, 0], 1)
    x, w, b = torch.randn(images, 4, 9, 11), torch.randn(6, 4, kernel, kernel), torch.randn(6)
    dy = torch.randn_like(ATEN.convolution(x, w, b, *window))

    def function(x: Tensor, w: Tensor, b: Tensor, dy: Tensor) -> list[Tensor]:
        dx, dw, _ = ATEN.convolution_backward(dy, x, w, [6], *window, [True, True, False])
        y = ATEN.convolution(x, w, b, *window)
        return [y.permute(0, 2, 3, 1).contiguous(), dx.permute(0, 2, 3, 1).contiguous(), dw]

    compare(function, {"x": x, "w": w, "b": b, "dy": dy}, mask, tmp_path)


class Net(nn.Module):
    """Two convolutions and two linear layers."""

    def __init__(self, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 10, 3, padding=1, stride=stride)
        self.fc1 = nn.Linear(10 * 9, 24)
        self.fc2 = nn.Linear(24, 7)
        self.pool = nn.MaxPool2d(2) if stride == 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.conv2(nn.functional.max_pool2d(torch.relu(self.conv1(x)), 2))))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


WEIGHTS = ("conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight")
SPEC = StepSpec(
    input=InputSpec(layout="chw", shape=(1, 12, 12), dtype="float32"),
    classes=7,
    batch=6,
    masked=WEIGHTS,
    sparse=(SparseWeight("conv2.weight", 200), SparseWeight("fc1.weight", 500), SparseWeight("fc2.weight", 100)),
)
STEPS = {
    "sgd": Optimizer(),
    "nesterov": Optimizer(nesterov=True),
    "adamw": Optimizer(kind="adamw"),
}
Artifact = tuple[ArtifactManifest, dict[str, Path]]


def net(stride: int = 1) -> nn.Module:
    torch.manual_seed(0)
    return Net(stride)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_step_with_sparse_weights_agrees_with_torch(name: str, tmp_path: Path) -> None:
    spec = msgspec.structs.replace(SPEC, optimizer=STEPS[name], clip_norm=name == "nesterov")
    manifest = export_artifact(net(), spec, tmp_path / "artifact", runtime="executorch")
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance
    assert manifest.tensor("fc1.weight").capacity == manifest.tensor("fc1.weight" + MASK).capacity == 500
    assert manifest.tensor("conv1.weight" + MASK).capacity == 0


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("sparse") / "artifact"
    export_artifact(net(), SPEC, folder, runtime="executorch")
    assert verify_artifact(folder, net()).steps == GATE_STEPS
    return read_artifact_folder(folder)


def masked_weights(share: float) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The network's weights under random masks, and the masks by weight name."""
    generator = np.random.default_rng(2)
    values = {n: p.detach().numpy() for n, p in net().named_parameters()}
    masks = {n: generator.random(values[n].shape) < share for n in WEIGHTS}
    return {n: v * masks[n] if n in masks else v for n, v in values.items()}, masks


def order_files(share: float, folder: Path) -> WeightsFile:
    """Weights and masks as they travel."""
    values, masks = masked_weights(share)
    packed: dict[str, np.ndarray] = {}
    for name, mask in masks.items():
        packed |= pack_mask(name, mask)
    changing = {n + KEPT if n in masks else n: kept_values(v, masks[n]) if n in masks else v for n, v in values.items()}
    for name, tensors in (("weights", changing), ("constants", packed)):
        (folder / name).write_bytes(encode_tensors(tensors))
    return WeightsFile(folder / "weights", where="test", constants=folder / "constants")


def loaded(artifact: Artifact) -> Session:
    manifest, files = artifact
    return runtime("executorch").load(manifest, files, threads=1)


def feeds() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    hyper = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
    return {
        "input": generator.standard_normal((6, 1, 12, 12)).astype(np.float32),
        "target": generator.integers(0, 7, 6),
        **{n: np.array(v, np.float32) for n, v in hyper.items()},
    }


@pytest.mark.slow
def test_three_steps_are_those_of_the_simulated_device(artifact: Artifact, tmp_path: Path) -> None:
    device, (values, masks) = loaded(artifact), masked_weights(0.2)
    device.load_state(order_files(0.2, tmp_path))
    dense = msgspec.structs.replace(SPEC, sparse=())
    simulated = TorchArtifact(net(), dense, classes=[str(i) for i in range(7)]).session("cpu")
    simulated.load_state(values | {n + MASK: m for n, m in masks.items()})
    for _ in range(3):
        losses = [session.run("train", feeds())["loss"] for session in (device, simulated)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name in values:
        found, expected = device.read(name), simulated.read(name)
        assert np.linalg.norm(found - expected) <= 1e-5 * np.linalg.norm(expected)
        if name in masks:
            assert not found[~masks[name]].any()


def test_update_of_kept_values_needs_no_whole_tensor(artifact: Artifact, tmp_path: Path) -> None:
    session, (values, masks) = loaded(artifact), masked_weights(0.2)
    session.load_state(order_files(0.2, tmp_path))
    assert session.holds_kept("fc1.weight")
    assert not session.holds_kept("conv1.weight")
    kept = session.read("fc1.weight" + KEPT)
    np.testing.assert_array_equal(kept, values["fc1.weight"][masks["fc1.weight"]])
    np.testing.assert_array_equal(session.read("fc1.weight" + MASK), masks["fc1.weight"])


def test_one_artifact_serves_every_mask_it_has_room_for(artifact: Artifact, tmp_path: Path) -> None:
    session = loaded(artifact)
    losses = []
    for share in (0.2, 0.05, 0.0, 0.2):
        session.load_state(order_files(share, tmp_path))
        losses.append(session.run("train", feeds())["loss"])
    assert losses[0] == losses[3]
    assert len(set(losses)) == 3


def test_self_test_runs_on_a_mask_of_its_own(artifact: Artifact) -> None:
    assert check_self_test(loaded(artifact), artifact[0], steps=3) < 1e-5


def test_mask_that_keeps_too_many_is_refused_with_both_numbers(artifact: Artifact, tmp_path: Path) -> None:
    tensors = order_files(0.9, tmp_path)
    kept = int(tensors["conv2.weight" + MASK].sum())
    with pytest.raises(DeviceRefused, match=rf"conv2\.weight#mask' keeps {kept} entries.*room for 200"):
        loaded(artifact).load_state(tensors)


def test_values_and_masks_that_do_not_fit_are_errors(artifact: Artifact) -> None:
    session, (values, masks) = loaded(artifact), masked_weights(0.2)
    whole = values | {n + MASK: m for n, m in masks.items()}
    session.load_state(whole)
    with pytest.raises(ArtifactCorrupt, match=r"bool\[24, 89\] as mask 'fc1\.weight#mask'.*bool\[24, 90\]"):
        session.load_state(whole | {"fc1.weight" + MASK: np.ones((24, 89), bool)})
    with pytest.raises(ArtifactCorrupt, match=r"hold none as mask"):
        session.load_state({n: v for n, v in whole.items() if n != "fc1.weight" + MASK})
    kept = int(masks["fc1.weight"].sum())
    with pytest.raises(ArtifactCorrupt, match=rf"\[{kept - 1}\] values of 'fc1\.weight' for {kept} kept"):
        session.load_state(whole | {"fc1.weight" + KEPT: np.zeros(kept - 1, np.float32)})
    with pytest.raises(ArtifactCorrupt, match=r"no parameter 'fc1\.weight'"):
        session.load_state({n: v for n, v in whole.items() if n != "fc1.weight"})


def test_layers_without_sparse_kernels_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ExportRefused, match=r"conv2.*held as kept values.*use the dense form"):
        export_artifact(net(stride=2), SPEC, tmp_path / "artifact", runtime="executorch")
    with pytest.raises(ExportRefused, match=r"onnxruntime cannot carry weights held as kept values.*executorch"):
        export_artifact(net(), SPEC, tmp_path / "artifact", runtime="onnxruntime")


def test_sparse_weight_needs_a_mask_and_no_squared_gradients() -> None:
    with pytest.raises(ValueError, match=r"fc1\.weight' has no mask"):
        msgspec.structs.replace(SPEC, masked=("conv2.weight", "fc2.weight"))
    with pytest.raises(ValueError, match=r"fc1\.weight': squared gradients"):
        msgspec.structs.replace(SPEC, squared_gradient=("fc1.weight",))
    with pytest.raises(ValueError, match="capacity 0"):
        msgspec.structs.replace(SPEC, sparse=(SparseWeight("fc1.weight", 0),))

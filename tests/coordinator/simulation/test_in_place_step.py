"""The step in place against the written-out one, which exports are made of."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.simulation import in_place_step, large_weights
from coordinator.simulation.torch_session import TorchArtifact, TorchSession
from edge.contracts.manifest import InputSpec
from export.program_inputs import mask_name
from export.training_step import FactorPair, Optimizer, StepSpec

CLASSES = list("abc")
HYPER = {
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 0.01,
    "clip_norm": 0.5,
    "proximal_mu": 0.3,
    "frobenius_lambda": 0.2,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-2,
}
IMAGE = InputSpec(layout="chw", shape=(2, 6, 6), dtype="float32")
PLAIN = Optimizer(weight_decay=False)


class Net(nn.Module):
    """A convolution, batch norm and three linear layers, the last two of them factors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.fc, self.v, self.u = nn.Linear(64, 12), nn.Linear(12, 2, bias=False), nn.Linear(2, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [batch, 3]."""
        x = torch.relu(self.norm(self.conv(x)))
        logits: torch.Tensor = self.u(self.v(torch.relu(self.fc(x.flatten(1)))))
        return logits


class Twice(nn.Module):
    """One linear layer that is called twice, and its weight read once more."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(72, 72), nn.Linear(72, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [batch, 3]."""
        hidden = torch.tanh(self.fc(torch.tanh(self.fc(x.flatten(1)))))
        logits: torch.Tensor = self.out(hidden + 0.01 * self.fc.weight.sum())
        return logits


class Detached(nn.Module):
    """A linear layer whose weight is read behind autograd's back, too."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(72, 72), nn.Linear(72, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits [batch, 3]."""
        logits: torch.Tensor = self.out(torch.tanh(self.fc(x.flatten(1))) * self.fc.weight.detach().abs().mean())
        return logits


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(in_place_step, "LARGE", 64)
    monkeypatch.setattr(large_weights, "ROWS", 5)
    monkeypatch.setattr(large_weights, "LEAST_SCALE", 0.7)  # three steps of 0.9 fall below it
    torch.manual_seed(3)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "spec",
    [
        StepSpec(input=IMAGE, classes=3),
        StepSpec(input=IMAGE, classes=3, optimizer=PLAIN),
        StepSpec(input=IMAGE, classes=3, optimizer=Optimizer(momentum=False, weight_decay=False)),
        StepSpec(input=IMAGE, classes=3, optimizer=Optimizer(nesterov=True)),
        StepSpec(input=IMAGE, classes=3, clip_norm=True),
        StepSpec(input=IMAGE, classes=3, proximal=True),
        StepSpec(input=IMAGE, classes=3, optimizer=PLAIN, frozen=("conv.weight",), squared_gradient=("fc.weight",)),
        StepSpec(input=IMAGE, classes=3, optimizer=PLAIN, masked=("conv.weight", "fc.weight")),
        StepSpec(input=IMAGE, classes=3, frobenius=(FactorPair("u.weight", "v.weight"),)),
        StepSpec(input=IMAGE, classes=3, norm="batch", loss="bce_one_hot"),
    ],
)
def test_step_is_the_written_out_one(spec: StepSpec) -> None:
    assert _distance(Net(), spec) < 1e-5


@pytest.mark.parametrize("module", [Net, Twice])
def test_large_layers_have_no_gradient_and_move_as_written_out(module: type[nn.Module]) -> None:
    spec = StepSpec(input=IMAGE, classes=3, optimizer=PLAIN)
    built = module()
    assert "fc.weight" in in_place_step._large_layers(built, spec)
    assert _distance(built, spec, steps=6) < 1e-5


@pytest.mark.parametrize("most", [6, 12, 40])  # rows: none fit, two steps of six (then written out), all
@pytest.mark.parametrize("momentum", [True, False])
def test_kept_factors_move_a_large_layer_as_written_out(
    monkeypatch: pytest.MonkeyPatch, most: int, momentum: bool
) -> None:
    monkeypatch.setattr(large_weights, "KEPT_SHARE", 12 / most)
    monkeypatch.setattr(large_weights, "SOON_FULL", 1)
    spec = StepSpec(input=IMAGE, classes=3, optimizer=Optimizer(momentum=momentum, weight_decay=False))
    assert _distance(Net(), spec, steps=4) < 1e-5
    assert _distance(Twice(), spec, steps=4) < 1e-5


def test_only_what_a_layer_alone_reads_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_weights, "KEPT_SHARE", 0.1)
    for module, kept in ((Net(), ("fc.weight",)), (Twice(), ("out.weight",)), (Detached(), ("out.weight",))):
        artifact = TorchArtifact(module, StepSpec(input=IMAGE, classes=3, optimizer=PLAIN), classes=CLASSES)
        _stepped(artifact.session("cpu"), {n: v.numpy() for n, v in module.state_dict().items() if v.dim()}, 1)
        assert artifact.steps["train"].keeps() == kept


@pytest.mark.parametrize("most", [6, 40])  # rows: written out at once, kept
@pytest.mark.parametrize("module", [Net, Twice, Detached])
def test_bfloat16_products_move_weights_nearly_as_float32_ones(
    monkeypatch: pytest.MonkeyPatch, module: type[nn.Module], most: int
) -> None:
    monkeypatch.setattr(large_weights, "KEPT_SHARE", 12 / most)
    monkeypatch.setattr(large_weights, "SOON_FULL", 1)
    for optimizer in (PLAIN, Optimizer(kind="adam")):
        spec = StepSpec(input=IMAGE, classes=3, optimizer=optimizer)
        distance = _distance(module(), spec, precision=torch.bfloat16)
        print("distance", distance)
        assert 1e-6 < distance < 0.05  # eight bits of a factor: 1/256 of a gradient, and momentum begins with zero


def test_adam_and_decaying_masks_are_written_out() -> None:
    for spec in (
        StepSpec(input=IMAGE, classes=3, optimizer=Optimizer(kind="adam")),
        StepSpec(input=IMAGE, classes=3, masked=("fc.weight",)),
    ):
        assert not TorchArtifact(Net(), spec, classes=CLASSES).steps


def _distance(module: nn.Module, spec: StepSpec, steps: int = 3, precision: torch.dtype = torch.float32) -> float:
    """The largest relative L2 distance of a tensor after so many steps, as simulated and written out."""
    artifact = TorchArtifact(copy.deepcopy(module), spec, classes=CLASSES)
    assert artifact.steps or precision != torch.float32
    written = TorchArtifact(copy.deepcopy(module), spec, classes=CLASSES)
    written.steps = {}
    written.is_channels_last = False
    weights = {n: v.numpy() for n, v in module.state_dict().items() if v.dim()}
    weights |= {mask_name(n): np.random.default_rng(1).random(weights[n].shape) < 0.5 for n in spec.masked}
    ours = _stepped(artifact.session("cpu", precision), weights, steps)
    theirs = _stepped(written.session("cpu"), weights, steps)
    assert all(np.isfinite(value).all() for value in theirs.values())
    return max(
        float(np.linalg.norm(ours[name] - value) / max(np.linalg.norm(value), 1e-2)) for name, value in theirs.items()
    )


def _stepped(session: TorchSession, weights: dict[str, np.ndarray], steps: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(2)
    for _ in range(2):  # the second time into what the first left
        session.load_state(weights)
        for _ in range(steps):
            x = random.normal(size=(6, *IMAGE.shape)).astype(np.float32)
            feeds = {"input": x, "target": random.integers(0, 3, 6), **{k: np.float32(v) for k, v in HYPER.items()}}
            session.run("train", {name: np.asarray(value) for name, value in feeds.items()})
    names = [name for name in session._carried if not name.endswith("#mask")]
    whole = {name: np.empty_like(session.read(name)) for name in names if not name.endswith("#momentum")}
    for name, array in whole.items():
        session.read_into(name, array)
        assert np.array_equal(array, session.read(name))
    return {name: np.array(session.read(name)) for name in names}

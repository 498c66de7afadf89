"""Graphs with a fault are refused, on calm networks and on chaotic ones; on timm's: benchmarks/public_models.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from edge.contracts.errors import ParityError
from edge.contracts.manifest import InputSpec
from export.formats.onnx_step.format import OnnxStep
from export.parity import check_parity
from export.training_step import StepSpec
from export.written_programs import WrittenPrograms
from tests.export.graph_mutations import FAULTS, mutations


class Residual(nn.Module):
    """A convolution block as in ResNets, two convolutions of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.norm2 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))


def residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), Residual(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
    )


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(48, 8),
        nn.Tanh(),
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    )


def attention() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
    head = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    return nn.Sequential(nn.Flatten(2), nn.Unflatten(2, (2, 8)), nn.Flatten(1, 2), layer, head)


def chaotic() -> nn.Module:
    """Rectifiers under batch norms over a batch: torch float32 is 1e-2 and more from float64 on ordinary values."""
    layers = [layer for _ in range(24) for layer in (nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 32), *layers, nn.Linear(32, 3))


NETS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": perceptron, "residual": residual, "attention": attention, "chaotic": chaotic
}  # fmt: skip
SPEC = StepSpec(input=InputSpec(layout="chw", shape=(3, 4, 4)), classes=3, batch=16)


@cache
def written(net: str) -> tuple[nn.Module, WrittenPrograms, dict[str, list[tuple[str, bytes]]]]:
    """The network, its programs, and its training graph with each fault, by fault."""
    torch.manual_seed(0)
    module = NETS[net]()
    programs = OnnxStep().write(module, SPEC)
    found = list(mutations(programs.files["train.onnx"]))
    return module, programs, {fault: [m for m in found if m[0].startswith(f"{fault} at ")] for fault in FAULTS}


def checked(net: str, train: bytes) -> None:
    module, programs, _ = written(net)
    check_parity(module, SPEC, {"train": train, "eval": programs.files["eval.onnx"]}, programs.tensors)


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS)
def test_right_graph_passes(net: str) -> None:
    checked(net, written(net)[1].files["train.onnx"])


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("net", NETS)
def test_graph_with_a_fault_is_refused(net: str, fault: str) -> None:
    faulty = written(net)[2][fault]
    if not faulty:
        assert (net, fault) in NO_PLACE, f"no place for {fault} was found in {net}"
    for _, data in faulty:
        with pytest.raises(ParityError, match="is wrong, do not use it") as refused:
            checked(net, data)
        assert "cannot be" not in str(refused.value)  # it loads and runs: its numbers are what gives it away


NO_PLACE = {
    ("perceptron", "a dropped gradient term"),
    ("perceptron", "a stale buffer"),
    ("perceptron", "a rectifier's mask missing"),
    ("attention", "a stale buffer"),
}
"""(network, fault) for which there is no such operation in the graph."""


@pytest.mark.slow
def test_chaotic_network_is_chaotic() -> None:
    from export.agreement import HOPELESS, Reference

    module, programs, _ = written("chaotic")
    assert Reference(module, SPEC, programs.tensors, 1).own_error(1) > HOPELESS

"""Activations and their gradients in ONNX Runtime's quick operators, beside torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnxruntime as ort
import pytest
import torch
from onnx import ModelProto
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from edge.contracts.tensors import TensorSpec
from export.capture import Capture
from export.decompositions import decomposition_table
from export.formats.onnx_step.operator_table import translate
from export.formats.onnx_step.operators.activations import WHOLE

ATEN = torch.ops.aten
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 2.0),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "leaky_relu, steeper below": lambda x: F.leaky_relu(x, 1.5),
    "elu": F.elu,
    "elu of 0.7": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.5),
    "softplus": F.softplus,
    "softplus, straight from 3": lambda x: F.softplus(x, beta=2.0, threshold=6.0),
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
SLOW = {"Where", "Elu", "PRelu", "Softplus", "Celu", "Selu", "Mish"}


def translated(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> ModelProto:
    """``function`` as a graph of standard operators, its inputs i0, i1 and so on."""
    outputs: list[str] = []

    def flat(*values: Tensor) -> list[Tensor]:
        results = list(function(*values))
        outputs[:] = [f"o{n}" for n in range(len(results))]
        return results

    graph = make_fx(flat, decomposition_table=decomposition_table(WHOLE), tracing_mode="fake")(*inputs)
    graph.graph.eliminate_dead_code()
    specs = [TensorSpec(f"i{n}", tuple(x.shape), "float32", "input") for n, x in enumerate(inputs)]
    return translate(Capture(graph, tuple(specs), tuple(outputs), ()))


def assert_agrees(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> set[str]:
    """ONNX Runtime gives what torch gives, to 2e-6 of the largest value; the operators of the graph."""
    model = translated(function, inputs)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {f"i{n}": x.detach().numpy() for n, x in enumerate(inputs)})
    for value, given in zip(function(*inputs), found, strict=True):
        scale = max(float(value.detach().abs().max()), 1e-6)
        assert given.shape == tuple(value.shape)
        assert np.abs(given - value.detach().numpy()).max() <= 2e-6 * scale
    return {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_and_its_gradient_choose_by_no_condition(name: str) -> None:
    x, dy = torch.linspace(-30, 30, 4001), torch.linspace(2, -1, 4001)
    x[:300], x[2000:2002] = torch.linspace(-1e-3, 1e-3, 300), 0.0
    x[400:409] = torch.tensor([-3.0, 3.0, 6.0, -0.5, 2.0, 5.9999995, 6.0000005, -2.9999998, 1e-30])

    def both(x: Tensor, dy: Tensor) -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        y = ACTIVATIONS[name](leaf)
        return [y, *torch.autograd.grad(y, leaf, dy)]

    operators = assert_agrees(both, [x, dy])
    allowed = {"Where"} if "straight from" in name else set()  # a softplus that bends where it ends
    assert operators & SLOW <= allowed


@pytest.mark.parametrize("shape", [(4, 5, 6, 6), (7, 33), (3, 5, 9)])
@pytest.mark.parametrize("of_channels", [True, False])
def test_prelu_and_the_gradient_of_its_slopes(shape: tuple[int, ...], *, of_channels: bool) -> None:
    torch.manual_seed(0)
    x, dy, slopes = torch.randn(shape), torch.randn(shape), torch.rand(shape[1] if of_channels else 1)

    def gradients(x: Tensor, dy: Tensor, slopes: Tensor) -> list[Tensor]:
        leaf, slope = x.detach().requires_grad_(), slopes.detach().requires_grad_()
        y = F.prelu(leaf, slope)
        return [y, *torch.autograd.grad(y, (leaf, slope), dy)]

    assert not assert_agrees(gradients, [x, dy, slopes]) & SLOW


@pytest.mark.parametrize("numbers", [(1.0, 1.0, 1.0), (1.67, 1.05, 1.0), (1.5, 1.0, 0.5)])
def test_gradient_of_an_elu_in_place_is_its_results(numbers: tuple[float, float, float]) -> None:
    x, dy = torch.linspace(-9, 3, 1201), torch.linspace(2, -1, 1201)
    y = ATEN.elu(x, *numbers)
    assert not assert_agrees(lambda dy, y: [ATEN.elu_backward(dy, *numbers, True, y)], [dy, y]) & SLOW


@pytest.mark.parametrize("bound", [1e9, 0.1, -7.3])
def test_a_bound_is_met_to_the_last_digit(bound: float) -> None:
    edge = torch.tensor(bound)
    near = [torch.nextafter(edge, torch.tensor(to)) for to in (-3e38, 3e38)]
    x = torch.stack([near[0], edge, near[1]])
    for low, high in ((-3e38, bound), (bound, 3e38)):
        assert_agrees(lambda x, low=low, high=high: [ATEN.hardtanh_backward(torch.ones(3), x, low, high)], [x])

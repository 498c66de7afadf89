"""Activations with their gradients, residual sums, negative padding, embeddings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.export.executorch.executorch_rewritten import assert_rewrite_agrees

pytestmark = pytest.mark.runtime
ATEN = torch.ops.aten


def test_relu_mask_and_residual_sum_stay_images(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2, 3, 6, 6), torch.randn(3, 3, 3, 3)

    def block(x: Tensor, w: Tensor) -> list[Tensor]:
        y = torch.relu(torch.conv2d(x, w, padding=1))
        return [y + x, ATEN.threshold_backward(x, y, 0), (y + x).mean([2, 3])]

    kernels = assert_rewrite_agrees(block, [x, w], tmp_path)
    assert "aten::threshold_backward.grad_input" not in kernels


def test_gelu_from_far_left_to_far_right(tmp_path: Path) -> None:
    x = torch.linspace(-12, 12, 4001)
    assert_rewrite_agrees(lambda x: [torch.nn.functional.gelu(x)], [x], tmp_path, tolerance=1e-6)


def test_gradient_of_gelu_from_far_left_to_far_right(tmp_path: Path) -> None:
    x, dy = torch.linspace(-12, 12, 4001), torch.linspace(2, -1, 4001)
    exact = assert_rewrite_agrees(lambda dy, x: [ATEN.gelu_backward(dy, x)], [dy, x], tmp_path, tolerance=1e-6)
    assert exact == {"apportion_native::gelu_backward.out"}


def test_negative_padding_cuts(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 5, 6)
    assert_rewrite_agrees(lambda x: [ATEN.constant_pad_nd(x, [-1, 2, 0, -2], 0.0)], [x], tmp_path, tolerance=0)


def test_embedding_gradient_skips_the_padding_row(tmp_path: Path) -> None:
    torch.manual_seed(0)
    dy, indices = torch.randn(4, 7, 6), torch.randint(0, 9, (4, 7))
    assert_rewrite_agrees(
        lambda dy, indices: [ATEN.embedding_dense_backward(dy, indices, 9, 3, False)], [dy, indices], tmp_path
    )


def test_hard_activations_and_their_gradients(tmp_path: Path) -> None:
    x, dy = torch.linspace(-5, 5, 1001), torch.linspace(2, -1, 1001)
    x[500], x[200], x[800] = 0.0, -3.0, 3.0

    def activations(x: Tensor, dy: Tensor) -> list[Tensor]:
        aten = torch.ops.aten
        forward = [torch.nn.functional.hardswish(x), torch.nn.functional.hardsigmoid(x), x.relu()]
        return [*forward, aten.hardswish_backward(dy, x), aten.hardsigmoid_backward(dy, x), x * dy, x * 0.25]

    kernels = assert_rewrite_agrees(activations, [x, dy], tmp_path)
    names = ("hardswish", "hardsigmoid", "hardswish_backward", "hardsigmoid_backward", "relu", "multiply", "scale")
    assert {f"apportion_native::{name}.out" for name in names} <= kernels


SMOOTH = {
    "sigmoid": lambda x: x.sigmoid(),
    "tanh": lambda x: x.tanh(),
    "silu": torch.nn.functional.silu,
    "elu": lambda x: torch.nn.functional.elu(x, 0.7),
    "selu": torch.nn.functional.selu,
    "celu": lambda x: torch.nn.functional.celu(x, 1.5),
    "softplus": lambda x: torch.nn.functional.softplus(x, beta=2.0, threshold=6.0),
    "mish": torch.nn.functional.mish,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "hardtanh": lambda x: torch.nn.functional.hardtanh(x, -0.5, 2.0),
    "relu6": torch.nn.functional.relu6,
    "leaky_relu": lambda x: torch.nn.functional.leaky_relu(x, 0.2),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_an_activation_and_its_gradient_are_a_kernel_each(name: str, tmp_path: Path) -> None:
    x, dy = torch.linspace(-30, 30, 4001), torch.linspace(2, -1, 4001)
    x[:300], x[2000] = torch.linspace(-1e-3, 1e-3, 300), 0.0

    def both(x: Tensor, dy: Tensor) -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        y = SMOOTH[name](leaf)
        return [y, *torch.autograd.grad(y, leaf, dy)]

    kernels = assert_rewrite_agrees(both, [x, dy], tmp_path, tolerance=1e-6)
    assert len(kernels) == 2
    assert all(kernel.startswith("apportion_native::") for kernel in kernels), kernels


@pytest.mark.parametrize("name", ["elu", "leaky_relu", "sigmoid", "hardtanh"])
def test_activations_of_images_keep_their_channels_last(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, w, dy = torch.randn(2, 3, 6, 6), torch.randn(5, 3, 3, 3), torch.randn(2, 5, 6, 6)

    def both(x: Tensor, w: Tensor, dy: Tensor) -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        y = SMOOTH[name](torch.conv2d(leaf, w, padding=1))
        return list(torch.autograd.grad(y, leaf, dy))

    assert_rewrite_agrees(both, [x, w, dy], tmp_path)


@pytest.mark.parametrize("shape", [(4, 5, 6, 6), (4, 20, 3, 3), (7, 33), (3, 5, 9)])
@pytest.mark.parametrize("slopes", ["of each channel", "of all"])
def test_prelu_and_the_gradient_of_its_slopes(shape: tuple[int, ...], slopes: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, dy = torch.randn(shape), torch.randn(shape)
    weight = torch.rand(shape[1] if slopes == "of each channel" else 1)

    def gradients(x: Tensor, dy: Tensor, weight: Tensor) -> list[Tensor]:
        leaf, slope = x.detach().requires_grad_(), weight.detach().requires_grad_()
        y = torch.nn.functional.prelu(leaf * 1.0, slope)
        return [y, *torch.autograd.grad(y, (leaf, slope), dy)]

    kernels = assert_rewrite_agrees(gradients, [x, dy, weight], tmp_path)
    assert {"apportion_native::prelu.out", "apportion_native::prelu_backward.out"} <= kernels


def test_gradient_of_an_elu_in_place_is_written_out(tmp_path: Path) -> None:
    y, dy = torch.linspace(-0.9, 3, 101), torch.linspace(2, -1, 101)
    assert_rewrite_agrees(lambda dy, y: [ATEN.elu_backward(dy, 1.0, 1.0, 1.0, True, y)], [dy, y], tmp_path)

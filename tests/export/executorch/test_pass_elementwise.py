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


def test_gradient_of_gelu_has_a_kernel_and_that_of_its_approximation_is_written_out(tmp_path: Path) -> None:
    x, dy = torch.linspace(-12, 12, 4001), torch.linspace(2, -1, 4001)
    exact = assert_rewrite_agrees(lambda dy, x: [ATEN.gelu_backward(dy, x)], [dy, x], tmp_path, tolerance=1e-6)
    assert exact == {"apportion_native::gelu_backward.out"}
    # torch float32 is itself 1.2e-6 from float64 there, the program 0.6e-6.
    bent = assert_rewrite_agrees(
        lambda dy, x: [ATEN.gelu_backward(dy, x, approximate="tanh")], [dy, x], tmp_path, tolerance=2e-6
    )
    assert not any("gelu" in name for name in bent)


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

"""Pooling and its gradients against torch: overlapping windows, ties, padding, windows that stick out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.export.executorch.executorch_rewritten import assert_rewrite_agrees

pytestmark = pytest.mark.runtime
ATEN = torch.ops.aten
MAXIMA = {
    "plain": ([2, 2], [2, 2], [0, 0], [1, 1], False),
    "overlapping": ([3, 3], [2, 2], [1, 1], [1, 1], False),
    "dilated": ([2, 3], [1, 2], [1, 1], [2, 1], False),
    "sticking-out": ([3, 3], [2, 2], [0, 0], [1, 1], True),
}
AVERAGES = {
    "plain": ([2, 2], [2, 2], [0, 0], False, True, None),
    "overlapping": ([3, 3], [2, 2], [1, 1], False, True, None),
    "without-padding": ([3, 3], [2, 2], [1, 1], False, False, None),
    "sticking-out": ([3, 3], [2, 2], [1, 1], True, True, None),
    "fixed-divisor": ([2, 3], [2, 2], [0, 1], False, True, 5),
}


@pytest.mark.parametrize("name", MAXIMA)
def test_max_pool_and_its_gradient(name: str, tmp_path: Path) -> None:
    kernel, stride, padding, dilation, ceil = MAXIMA[name]
    torch.manual_seed(0)
    # Small whole numbers, so that windows hold equal maxima: the first one gets the gradient.
    x = torch.randint(-2, 3, (2, 19, 8, 8)).float()
    dy = torch.randn_like(ATEN.max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil)[0])

    def both(x: Tensor, dy: Tensor) -> list[Tensor]:
        y, indices = ATEN.max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil)
        return [
            y,
            ATEN.max_pool2d_with_indices_backward(dy, x, kernel, stride, padding, dilation, ceil, indices),
        ]

    assert_rewrite_agrees(both, [x, dy], tmp_path)


@pytest.mark.parametrize("name", AVERAGES)
def test_average_pool_and_its_gradient(name: str, tmp_path: Path) -> None:
    window = AVERAGES[name]
    torch.manual_seed(0)
    x = torch.randn(2, 19, 8, 8)
    dy = torch.randn_like(ATEN.avg_pool2d(x, *window))
    assert_rewrite_agrees(
        lambda x, dy: [ATEN.avg_pool2d(x, *window), ATEN.avg_pool2d_backward(dy, x, *window)], [x, dy], tmp_path
    )


@pytest.mark.parametrize("size", [[4, 2], [3, 5], [7, 8], [11, 3]])
def test_adaptive_pool_and_its_gradient(size: list[int], tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, dy = torch.randn(2, 19, 8, 8), torch.randn(2, 19, *size)
    assert_rewrite_agrees(
        lambda x, dy: [ATEN._adaptive_avg_pool2d(x, size), ATEN._adaptive_avg_pool2d_backward(dy, x)], [x, dy], tmp_path
    )

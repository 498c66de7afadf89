"""Convolutions and their gradients over [N, H, W, C] images against torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.export.executorch.executorch_rewritten import assert_rewrite_agrees

pytestmark = pytest.mark.runtime
CASES = {
    "plain": ((3, 5, 9, 7), (20, 5, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "strided": ((2, 16, 9, 8), (40, 16, 3, 3), (2, 3), (1, 0), (1, 1), 1),
    "stride-beyond-kernel": ((2, 6, 9, 9), (8, 6, 1, 1), (2, 2), (0, 0), (1, 1), 1),
    "dilated": ((2, 4, 11, 11), (6, 4, 3, 3), (1, 2), (2, 2), (2, 3), 1),
    "grouped": ((2, 8, 7, 7), (12, 2, 3, 3), (2, 1), (1, 1), (1, 1), 4),
    "depthwise": ((2, 33, 8, 7), (33, 1, 3, 3), (2, 1), (1, 1), (1, 1), 33),
    "pointwise": ((3, 17, 6, 6), (10, 17, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    "wide-padding": ((1, 3, 5, 5), (4, 3, 3, 3), (1, 1), (4, 3), (1, 1), 1),
    # Those of 3 x 3, stride 1 and 32 channels or more, whole sixteens, go by tiles of 2 x 2 pixels.
    "tiles": ((2, 32, 9, 11), (48, 32, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "tiles-without-padding": ((3, 48, 13, 10), (32, 48, 3, 3), (1, 1), (0, 0), (1, 1), 1),
    "tiles-of-uneven-padding": ((8, 32, 4, 5), (32, 32, 3, 3), (1, 1), (2, 0), (1, 1), 1),
    "tiles-of-some-columns": ((2, 272, 9, 9), (144, 272, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    "long-sums": ((2, 300, 4, 4), (33, 300, 3, 3), (1, 1), (1, 1), (1, 1), 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_convolution_and_its_gradients(name: str, tmp_path: Path) -> None:
    x_shape, w_shape, stride, padding, dilation, groups = CASES[name]
    torch.manual_seed(0)
    x, w, b = torch.randn(x_shape), torch.randn(w_shape), torch.randn(w_shape[0])
    window = (list(stride), list(padding), list(dilation), False, [0, 0], groups)
    dy = torch.randn_like(torch.ops.aten.convolution(x, w, b, *window))

    def both(x: Tensor, w: Tensor, b: Tensor, dy: Tensor) -> list[Tensor]:
        backward = torch.ops.aten.convolution_backward(dy, x, w, [w_shape[0]], *window, [True, True, True])
        return [torch.ops.aten.convolution(x, w, b, *window), *backward]

    kernels = assert_rewrite_agrees(both, [x, w, b, dy], tmp_path)
    assert not [k for k in kernels if k.startswith("aten::convolution")]


def test_transposed_convolution_is_an_input_gradient(tmp_path: Path) -> None:
    torch.manual_seed(1)
    x, w, b = torch.randn(2, 6, 5, 4), torch.randn(6, 4, 3, 3), torch.randn(8)
    window = ([2, 2], [1, 1], [1, 1], True, [1, 0], 2)
    dy = torch.randn_like(torch.ops.aten.convolution(x, w, b, *window))

    def both(x: Tensor, w: Tensor, b: Tensor, dy: Tensor) -> list[Tensor]:
        backward = torch.ops.aten.convolution_backward(dy, x, w, [8], *window, [True, True, True])
        return [torch.ops.aten.convolution(x, w, b, *window), *backward]

    assert_rewrite_agrees(both, [x, w, b, dy], tmp_path)

"""Group norm and its gradients against torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.export.executorch.executorch_rewritten import assert_rewrite_agrees

pytestmark = pytest.mark.runtime
SHAPES = {
    "images": ((3, 24, 9, 7), 8),
    "a channel a group, narrow": ((2, 5, 6, 6), 5),
    "one group": ((2, 19, 5, 4), 1),
    "rows": ((6, 12), 3),
    "signals": ((3, 12, 11), 4),
}


@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "plain"])
@pytest.mark.parametrize("name", SHAPES)
def test_group_norm_and_its_gradients(name: str, weighted: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape, groups = SHAPES[name]
    x, dy = torch.randn(shape) * 2 + 3, torch.randn(shape)
    w, b = torch.rand(shape[1]) + 0.5, torch.randn(shape[1])

    def both(x: Tensor, dy: Tensor, w: Tensor, b: Tensor) -> list[Tensor]:
        leaves = [value.detach().requires_grad_() for value in (x, w, b)]
        given = leaves[1:] if weighted else [None, None]
        y = torch.nn.functional.group_norm(leaves[0], groups, *given)
        return [y, *torch.autograd.grad(y, leaves if weighted else leaves[:1], dy)]

    kernels = assert_rewrite_agrees(both, [x, dy, w, b], tmp_path)
    assert {"apportion_native::group_norm.out", "apportion_native::group_norm_backward.out"} <= kernels
    assert "aten::native_group_norm.out" not in kernels

"""Batch norm with residual and ReLU, and their gradients, in one kernel each: fewer kernels, the same values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.export.executorch.executorch_rewritten import assert_rewrite_agrees

pytestmark = pytest.mark.runtime
ATEN = torch.ops.aten


def _norm(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = ATEN._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)
    return found


def _back(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> Tensor:
    gradients = ATEN.native_batch_norm_backward(dy, x, None, None, None, mean, rstd, True, 1e-5, [True, True, True])
    return gradients[0]


def test_norm_with_relu_and_residual_and_their_gradients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, dy = torch.randn(3, 5, 7, 9), torch.randn(3, 5, 7, 9)

    def block(x: Tensor, dy: Tensor) -> list[Tensor]:
        n, mean, rstd = _norm(x)
        first = n.relu()
        m, mean2, rstd2 = _norm(first * 0.5)
        second = (m + first).relu()
        total = ATEN.threshold_backward(dy + dy * first, second, 0)
        inner = ATEN.threshold_backward(_back(total, first * 0.5, mean2, rstd2), first, 0)
        return [first, second, total, _back(inner, x, mean, rstd)]

    kernels = assert_rewrite_agrees(block, [x, dy], tmp_path)
    assert "apportion_native::add_relu_backward.out" in kernels
    assert not kernels & {f"apportion_native::{n}.out" for n in ("relu", "relu_backward", "add")}


def test_what_is_read_before_its_relu_stays(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)

    def both(x: Tensor, y: Tensor) -> list[Tensor]:
        n, *_ = _norm(x)
        total = n + y
        return [n, n.relu(), total, total.relu()]

    assert "apportion_native::relu.out" in assert_rewrite_agrees(both, [x, y], tmp_path)

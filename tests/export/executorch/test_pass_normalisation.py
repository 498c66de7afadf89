"""Batch norm, its running statistics and its gradients against torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.export.executorch.executorch_rewritten import assert_rewrite_agrees

pytestmark = pytest.mark.runtime
ATEN = torch.ops.aten
SHAPES = {
    "images": (4, 19, 6, 5),
    "rows": (37, 19),
    "signals": (4, 19, 11),
    "narrow": (3, 3, 9, 7),
    "narrow, a few rows": (5, 2),
    "one channel": (2, 1, 9, 5),
    "more than a vector of NEON has": (6, 7, 5, 5),
}


@pytest.mark.parametrize("name", SHAPES)
def test_batch_norm_and_its_gradients(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, dy = torch.randn(SHAPES[name]) * 3 + 5, torch.randn(SHAPES[name])
    w, b, mean, variance = (torch.rand(x.shape[1]) + 0.5 for _ in range(4))

    def both(x: Tensor, dy: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor) -> list[Tensor]:
        y, saved_mean, saved_rstd, new_mean, new_variance = ATEN._native_batch_norm_legit_functional(
            x, w, b, mean, variance, True, 0.1, 1e-5
        )
        gradients = ATEN.native_batch_norm_backward(
            dy, x, w, mean, variance, saved_mean, saved_rstd, True, 1e-5, [True, True, True]
        )
        return [y, new_mean, new_variance, *gradients]

    assert_rewrite_agrees(both, [x, dy, w, b, mean, variance], tmp_path)


@pytest.mark.parametrize("channels", [19, 3])
def test_frozen_batch_norm_uses_its_statistics_both_ways(channels: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, dy = torch.randn(2, channels, 4, 5), torch.randn(2, channels, 4, 5)
    w, b, mean, variance = (torch.rand(channels) + 0.5 for _ in range(4))

    def both(x: Tensor, dy: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor) -> list[Tensor]:
        y, *saved = ATEN._native_batch_norm_legit_functional(x, w, b, mean, variance, False, 0.1, 1e-5)[:3]
        gradients = ATEN.native_batch_norm_backward(dy, x, w, mean, variance, *saved, False, 1e-5, [True, True, True])
        return [y, *gradients]

    assert_rewrite_agrees(both, [x, dy, w, b, mean, variance], tmp_path)

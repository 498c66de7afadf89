"""Matrix products that read transposes in place, biases, and the sums that are a bias's gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.export.executorch.executorch_rewritten import assert_rewrite_agrees

pytestmark = pytest.mark.runtime


@pytest.mark.parametrize("rows", [1, 5, 70, 300])
def test_linear_layer_and_its_gradients(rows: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, w, b, dy = torch.randn(rows, 83), torch.randn(45, 83), torch.randn(45), torch.randn(rows, 45)
    kernels = assert_rewrite_agrees(
        lambda x, w, b, dy: [torch.addmm(b, x, w.t()), dy @ w, dy.t() @ x, dy.sum(0)], [x, w, b, dy], tmp_path
    )
    assert not kernels & {"apportion_native::permute.out", "aten::mm.out", "aten::addmm.out"}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(6, 65, 32, 65), (4, 9, 17, 33), (2, 600, 300, 16)])
def test_batched_products_of_every_transposition(sizes: tuple[int, int, int, int], tmp_path: Path) -> None:
    groups, m, k, n = sizes
    torch.manual_seed(0)
    a, b = torch.randn(groups, m, k), torch.randn(groups, k, n)
    at, bt = a.mT.contiguous(), b.mT.contiguous()
    assert_rewrite_agrees(
        lambda a, b, at, bt: [torch.bmm(a, b), torch.bmm(at.transpose(1, 2), b), torch.bmm(a, bt.transpose(1, 2))],
        [a, b, at, bt],
        tmp_path,
    )


def test_permutation_of_heads(tmp_path: Path) -> None:
    x = torch.arange(2 * 7 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 7, 3, 4, 5)
    orders = [(2, 0, 3, 1, 4), (0, 2, 1, 3, 4), (4, 3, 2, 1, 0), (1, 0, 2, 3, 4), (0, 1, 2, 4, 3)]
    assert_rewrite_agrees(lambda x: [x.permute(order).contiguous() for order in orders], [x], tmp_path, tolerance=0)


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 1, 0)])
def test_permutation_of_what_is_not_float32_is_the_runtimes(order: tuple[int, ...], tmp_path: Path) -> None:
    """A dropout's mask between layers of an LSTM: the kernels here move four bytes at a time."""
    mask, numbers = torch.arange(24).reshape(2, 3, 4) % 5 < 2, torch.arange(24).reshape(2, 3, 4)
    kernels = assert_rewrite_agrees(
        lambda mask, numbers: [mask.permute(order).to(torch.float32), numbers.permute(order).to(torch.float32)],
        [mask, numbers],
        tmp_path,
        tolerance=0,
    )
    assert "apportion_native::permute.out" not in kernels

"""Matrix products that read their operands as they lie: a transpose is a flag, a bias is where the sum begins."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from export.passes import sparse
from export.passes.operators import NATIVE
from export.passes.rewriter import rewrites
from export.passes.values import SparseWeight, Transposed, tensor_of

ATEN = torch.ops.aten


@rewrites(ATEN.mm.default)
def matrix_product(a: Any, b: Any) -> Tensor:
    """[M, K] times [K, N]."""
    if isinstance(b, SparseWeight) and not isinstance(a, Transposed):
        return sparse.linear(a, b, None)
    if isinstance(b, Transposed) and not isinstance(a, Transposed):
        return NATIVE.linear(tensor_of(a), b.base, None)
    return _product(a, b)


@rewrites(ATEN.bmm.default)
def batched_product(a: Any, b: Any) -> Tensor:
    """[G, M, K] times [G, K, N]."""
    return _product(a, b)


@rewrites(ATEN.addmm.default)
def sum_and_product(addend: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """``addend + a b``; a linear layer when addend is its bias."""
    if beta != 1 or alpha != 1:
        return NotImplemented
    addend = tensor_of(addend)
    if isinstance(b, SparseWeight) and not isinstance(a, Transposed):
        return sparse.linear(a, b, addend)
    if isinstance(b, Transposed) and not isinstance(a, Transposed) and addend.dim() == 1:
        return NATIVE.linear(tensor_of(a), b.base, addend)
    return matrix_product(a, b) + addend


@rewrites(ATEN.permute.default)
def permute(x: Any, order: Any) -> Any:
    """A transpose of the last two dimensions stays unwritten, others are written at once."""
    rank = len(x.shape)
    order = [i % rank for i in order]
    if order == list(range(rank)):
        return x
    if isinstance(x, SparseWeight) and rank == 2:
        return x.transposed()
    if isinstance(x, Tensor) and x.dtype != torch.float32:
        return NotImplemented  # the kernels move float32
    if rank in (2, 3) and order == [*range(rank - 2), rank - 1, rank - 2]:
        return x.base if isinstance(x, Transposed) else Transposed(tensor_of(x))
    tensor = tensor_of(x)
    kept = [i for i in order if not _is_one(tensor.shape[i])]
    if kept == sorted(kept):
        return tensor.reshape([tensor.shape[i] for i in order])
    return NATIVE.permute(tensor, order)


def _product(a: Any, b: Any) -> Tensor:
    left, right = (v.base if isinstance(v, Transposed) else tensor_of(v) for v in (a, b))
    return NATIVE.matrix_product(left, right, isinstance(a, Transposed), isinstance(b, Transposed))


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1

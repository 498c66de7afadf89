"""Sums and means over the last dimension, over everything but that, over pixels, and over all; the log-softmax."""

from __future__ import annotations

from typing import Any

import torch

from export.passes.operators import NATIVE
from export.passes.pooling import global_average
from export.passes.rewriter import rewrites
from export.passes.values import Image, tensor_of

ATEN = torch.ops.aten


@rewrites(ATEN.sum.dim_IntList)
def sum_over(x: Any, dims: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Over every dimension but the last, which is the gradient of a bias, or over the last alone; of an image, over all
    but the channels, or over all."""
    rank = len(x.shape)
    is_plain_image = isinstance(x, Image) and x.pixels.dtype == torch.float32
    if is_plain_image and dtype is None and {d % rank for d in dims} in ({0, 2, 3}, {0, 1, 2, 3}):
        return _sum_of_image(x, len(dims) == rank, keepdim)
    if dtype is not None or rank < 2 or sorted(d % rank for d in dims) not in (list(range(rank - 1)), [rank - 1]):
        return NotImplemented
    tensor = tensor_of(x)
    if tensor.dtype != torch.float32:
        return NotImplemented
    if dims[0] % rank == rank - 1:
        total = NATIVE.row_sum(tensor)
        return total.reshape([*tensor.shape[:-1], 1]) if keepdim else total
    total = NATIVE.channel_sum(tensor)
    return total.reshape([1] * (rank - 1) + [total.shape[0]]) if keepdim else total


def _sum_of_image(x: Image, is_of_all: bool, keepdim: bool) -> Any:
    total = NATIVE.channel_sum(x.pixels)
    if is_of_all:
        total = NATIVE.row_sum(total.reshape(1, -1))
        return total.reshape([1] * 4) if keepdim else total.reshape([])
    return total.reshape(1, -1, 1, 1) if keepdim else total


@rewrites(ATEN.sum.default)
def sum_of_all(x: Any, *, dtype: Any = None) -> Any:
    """In the form that the runtime has a kernel for."""
    return ATEN.sum.dim_IntList(tensor_of(x), list(range(len(x.shape))), False, dtype=dtype)


@rewrites(ATEN.mean.dim)
def mean_over(x: Any, dims: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The global average of an image."""
    if not isinstance(x, Image) or dtype is not None or sorted(d % 4 for d in dims) != [2, 3]:
        return NotImplemented
    average = global_average(x)
    n, c = average.shape[:2]
    return average if keepdim else average.pixels.reshape(n, c)


@rewrites(ATEN._log_softmax.default)
def log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    """Over the last dimension."""
    tensor = tensor_of(x)
    if half_to_float or dim % tensor.dim() != tensor.dim() - 1 or tensor.dtype != torch.float32:
        return NotImplemented
    return NATIVE.log_softmax(tensor)

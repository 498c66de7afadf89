"""Layer norm over the last dimensions and softmax over the last, with their gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import export.passes.layer_norm_operators  # noqa: F401  registers what is called here
from export.decompositions import written_out
from export.passes.operators import NATIVE
from export.passes.rewriter import rewrites
from export.passes.values import tensor_of

ATEN = torch.ops.aten


@rewrites(ATEN.native_layer_norm.default)
def layer_norm(x: Any, size: Any, w: Any, b: Any, eps: float) -> Any:
    """Output, and mean and 1/deviation of every row, [..., 1] in each normalised dimension."""
    tensor = tensor_of(x)
    if tensor.dtype != torch.float32:
        return NotImplemented
    y, mean, rstd = NATIVE.layer_norm(_rows(tensor, size), _flat(w), _flat(b), eps)
    outer = [*tensor.shape[: tensor.dim() - len(size)], *[1] * len(size)]
    return y.reshape(tensor.shape), mean.reshape(outer), rstd.reshape(outer)


@rewrites(ATEN.native_layer_norm_backward.default)
def layer_norm_backward(
    dy: Any, x: Any, size: Any, mean: Any, rstd: Any, w: Any, b: Any, wanted: Any
) -> tuple[Any, Any, Any]:
    """The gradients of input, weight and bias that are ``wanted``."""
    tensor = tensor_of(x)
    if tensor.dtype != torch.float32:
        plain = map(tensor_of, (dy, x, size, mean, rstd, w, b, wanted))
        gradients: tuple[Any, Any, Any] = written_out(ATEN.native_layer_norm_backward.default)(*plain)
        return gradients
    gradient, rows = _rows(tensor_of(dy), size), _rows(tensor, size)
    means, rstds = tensor_of(mean).reshape(-1), tensor_of(rstd).reshape(-1)
    dx = dw = db = None
    if wanted[0]:
        dx = NATIVE.layer_norm_backward(gradient, rows, means, rstds, _flat(w)).reshape(tensor.shape)
    if wanted[1] or wanted[2]:
        dw, db = (g.reshape(list(size)) for g in NATIVE.layer_norm_weight_gradient(gradient, rows, means, rstds))
    return dx, dw if wanted[1] else None, db if wanted[2] else None


@rewrites(ATEN._softmax.default)
def softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    """Over the last dimension."""
    tensor = tensor_of(x)
    if half_to_float or dim % tensor.dim() != tensor.dim() - 1 or tensor.dtype != torch.float32:
        return NotImplemented
    return NATIVE.softmax(tensor)


@rewrites(ATEN._softmax_backward_data.default)
def softmax_backward(dy: Any, y: Any, dim: int, dtype: Any) -> Any:
    """Over the last dimension; written out over another."""
    gradient, output = tensor_of(dy), tensor_of(y)
    if dim % output.dim() != output.dim() - 1 or output.dtype != torch.float32:
        return written_out(ATEN._softmax_backward_data.default)(gradient, output, dim, dtype)
    return NATIVE.softmax_backward(gradient, output)


def _rows(x: Tensor, size: Any) -> Tensor:
    return x.reshape(-1, math.prod(size))


def _flat(w: Any) -> Any:
    return None if w is None else tensor_of(w).reshape(-1)

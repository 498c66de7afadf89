"""Sums and products of equal shapes, and bookkeeping."""

from __future__ import annotations

from typing import Any

import torch
from torch import SymInt, Tensor

from export.passes.operators import NATIVE
from export.passes.rewriter import rewrites
from export.passes.values import Image, image_of, tensor_of

ATEN = torch.ops.aten


@rewrites(ATEN.clone.default, ATEN.detach.default, ATEN.alias.default)
def same(x: Any, **_: Any) -> Any:
    """Values are never written twice, so a copy is the value."""
    return x


@rewrites(ATEN.copy.default)
def copy(x: Any, source: Any, *_: Any) -> Any:
    """What a whole tensor is overwritten with, so that the tensor itself need not be."""
    like = isinstance(x, Tensor) and isinstance(source, Tensor) and x.dtype == source.dtype
    return source if like and tuple(x.shape) == tuple(source.shape) else NotImplemented


@rewrites(ATEN.view.default, ATEN._unsafe_view.default)
def view(x: Any, shape: Any) -> Tensor:
    """A view of the written-out value."""
    return tensor_of(x).reshape(shape)


@rewrites(ATEN.add.Tensor)
def add(a: Any, b: Any, *, alpha: float = 1) -> Any:
    """Sums of equal shapes."""
    if alpha != 1 or not (_is_value(a) and _is_value(b)) or tuple(a.shape) != tuple(b.shape) or not len(a.shape):
        return NotImplemented
    if isinstance(a, Image) or isinstance(b, Image):
        return Image(NATIVE.add(image_of(a).pixels, image_of(b).pixels, False))
    left, right = tensor_of(a), tensor_of(b)
    if left.dtype != torch.float32 or right.dtype != torch.float32:
        return NotImplemented
    return NATIVE.add(left, right, False)


@rewrites(ATEN.mul.Tensor, ATEN.mul.Scalar)
def multiply(a: Any, b: Any) -> Any:
    """Products of equal shapes, and with a number."""
    if isinstance(a, float | int) or (isinstance(a, Tensor) and not a.dim()):
        a, b = b, a
    if not _is_value(a) or not len(a.shape):
        return NotImplemented
    is_number = isinstance(b, float | int) and not isinstance(b, bool)
    if not is_number and not (_is_value(b) and tuple(a.shape) == tuple(b.shape)):
        return NotImplemented
    if isinstance(a, Image) or (not is_number and isinstance(b, Image)):
        pixels = image_of(a).pixels
        return Image(NATIVE.scale(pixels, float(b)) if is_number else NATIVE.multiply(pixels, image_of(b).pixels))
    left, right = tensor_of(a), b if is_number else tensor_of(b)
    if left.dtype != torch.float32 or (not is_number and right.dtype != torch.float32):
        return NotImplemented
    return NATIVE.scale(left, float(b)) if is_number else NATIVE.multiply(left, right)


@rewrites(ATEN.expand.default)
def expand(x: Any, shape: Any) -> Any:
    """Nothing where the shape stays; images stay images."""
    if tuple(x.shape) == tuple(shape):
        return x
    if len(shape) == 4 and len(x.shape) == 4 and all(isinstance(s, int) and s == 1 for s in x.shape[2:]):
        n, c, h, w = (old if new == -1 else new for old, new in zip(x.shape, shape, strict=True))
        return Image(image_of(x).pixels.expand(n, h, w, c))
    return NotImplemented


@rewrites(ATEN.constant_pad_nd.default)
def pad(x: Any, amounts: Any, value: float = 0) -> Any:
    """Negative amounts, which the gradient of a padding has, as slices: the runtime's kernel refuses them."""
    if all(amount >= 0 for amount in amounts):
        return NotImplemented
    y = tensor_of(x)
    for i in range(len(amounts) // 2):
        dim, before, after = y.dim() - 1 - i, min(amounts[2 * i], 0), min(amounts[2 * i + 1], 0)
        if before or after:
            y = ATEN.slice.Tensor(y, dim, -before, y.shape[dim] + after)
    positive = [max(amount, 0) for amount in amounts]
    return ATEN.constant_pad_nd.default(y, positive, value) if any(positive) else y


@rewrites(ATEN.div.Tensor)
def divide(x: Any, divisor: Any) -> Any:
    """A division by a size of the batch keeps the size a number."""
    if isinstance(divisor, SymInt) or (isinstance(divisor, int) and not isinstance(divisor, bool)):
        return NATIVE.divide(tensor_of(x), divisor)
    return NotImplemented


def _is_value(value: Any) -> bool:
    return hasattr(value, "shape")

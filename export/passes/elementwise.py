"""Activations, residual sums and bookkeeping."""

from __future__ import annotations

from typing import Any

import torch
from torch import SymInt, Tensor
from torch._decomp import get_decompositions

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


@rewrites(ATEN.threshold_backward.default)
def relu_backward(dy: Any, y: Any, threshold: float) -> Any:
    """The gradient where the ReLU's output is positive."""
    if threshold != 0:
        return NotImplemented
    if isinstance(y, Image) or isinstance(dy, Image):
        return Image(NATIVE.relu_backward(image_of(dy).pixels, image_of(y).pixels))
    return NATIVE.relu_backward(tensor_of(dy), tensor_of(y))


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


@rewrites(ATEN.gelu.default)
def gelu(x: Any, *, approximate: str = "none") -> Any:
    """The exact GELU."""
    return NotImplemented if approximate != "none" else NATIVE.gelu(tensor_of(x))


@rewrites(ATEN.gelu_backward.default)
def gelu_backward(dy: Any, x: Any, *, approximate: str = "none") -> Any:
    """The gradient of the exact GELU; that of its approximation written out, the runtime has no kernel for either."""
    if approximate == "none":
        return NATIVE.gelu_backward(tensor_of(dy), tensor_of(x))
    written_out = get_decompositions([ATEN.gelu_backward])[ATEN.gelu_backward.default]
    return written_out(tensor_of(dy), tensor_of(x), approximate=approximate)


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

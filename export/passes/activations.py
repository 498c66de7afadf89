"""Activations and their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from export.decompositions import written_out
from export.passes.operators import NATIVE
from export.passes.rewriter import rewrites
from export.passes.values import Image, image_of, tensor_of

ATEN = torch.ops.aten


@rewrites(ATEN.relu.default)
def relu(x: Any) -> Any:
    """The positive part."""
    return _pointwise(NATIVE.relu, x)


@rewrites(ATEN.threshold_backward.default)
def relu_backward(dy: Any, y: Any, threshold: float) -> Any:
    """The gradient where the ReLU's output is positive."""
    if threshold != 0:
        return NotImplemented
    return _pointwise(NATIVE.relu_backward, dy, y)


@rewrites(ATEN.gelu.default)
def gelu(x: Any, *, approximate: str = "none") -> Any:
    """The exact GELU."""
    return NotImplemented if approximate != "none" else NATIVE.gelu(tensor_of(x))


@rewrites(ATEN.gelu_backward.default)
def gelu_backward(dy: Any, x: Any, *, approximate: str = "none") -> Any:
    """The gradient of the exact GELU; that of its approximation written out, the runtime has no kernel for either."""
    if approximate == "none":
        return NATIVE.gelu_backward(tensor_of(dy), tensor_of(x))
    return written_out(ATEN.gelu_backward.default)(tensor_of(dy), tensor_of(x), approximate=approximate)


@rewrites(ATEN.hardswish.default)
def hardswish(x: Any) -> Any:
    """x times the hard sigmoid of x."""
    return _pointwise(NATIVE.hardswish, x)


@rewrites(ATEN.hardswish_backward.default)
def hardswish_backward(dy: Any, x: Any) -> Any:
    """Its gradient."""
    return _pointwise(NATIVE.hardswish_backward, dy, x)


@rewrites(ATEN.hardsigmoid.default)
def hardsigmoid(x: Any) -> Any:
    """x / 6 + 1 / 2, between 0 and 1."""
    return _pointwise(NATIVE.hardsigmoid, x)


@rewrites(ATEN.hardsigmoid_backward.default)
def hardsigmoid_backward(dy: Any, x: Any) -> Any:
    """Its gradient."""
    return _pointwise(NATIVE.hardsigmoid_backward, dy, x)


def _pointwise(kernel: Any, *values: Any) -> Any:
    """Images stay images; what is not float32 is left to the runtime."""
    if any(isinstance(value, Image) for value in values):
        return Image(kernel(*(image_of(value).pixels for value in values)))
    tensors: list[Tensor] = [tensor_of(value) for value in values]
    return kernel(*tensors) if all(t.dtype == torch.float32 for t in tensors) else NotImplemented

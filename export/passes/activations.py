"""Activations and their gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import export.passes.activation_operators  # noqa: F401  registers operators
from export.decompositions import written_out
from export.passes.normalisation import channels_last, restored
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
    """The exact GELU, or its approximation by tanh."""
    return _pointwise(NATIVE.gelu if approximate == "none" else NATIVE.gelu_tanh, x)


@rewrites(ATEN.gelu_backward.default)
def gelu_backward(dy: Any, x: Any, *, approximate: str = "none") -> Any:
    """Its gradient."""
    return _pointwise(NATIVE.gelu_backward if approximate == "none" else NATIVE.gelu_tanh_backward, dy, x)


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


@rewrites(ATEN.hardtanh.default)
def hardtanh(x: Any, low: float = -1, high: float = 1) -> Any:
    """What lies between two numbers; ReLU6 is one."""
    return _pointwise(NATIVE.hardtanh, x, numbers=(low, high))


@rewrites(ATEN.hardtanh_backward.default)
def hardtanh_backward(dy: Any, x: Any, low: float, high: float) -> Any:
    """Its gradient."""
    return _pointwise(NATIVE.hardtanh_backward, dy, x, numbers=(low, high))


@rewrites(ATEN.leaky_relu.default)
def leaky_relu(x: Any, slope: float = 0.01) -> Any:
    """A part of what is negative."""
    return _pointwise(NATIVE.leaky_relu, x, numbers=(slope,))


@rewrites(ATEN.leaky_relu_backward.default)
def leaky_relu_backward(dy: Any, x: Any, slope: float, _is_result: bool) -> Any:
    """Its gradient; argument and result have one sign where the slope is positive, and torch allows no other."""
    return _pointwise(NATIVE.leaky_relu_backward, dy, x, numbers=(slope,))


@rewrites(ATEN._prelu_kernel.default)
def prelu(x: Any, slopes: Any) -> Any:
    """A part of what is negative, of each channel one that is learnt, or of all."""
    if not _has_slopes_of_channels(x, slopes):
        return written_out(ATEN._prelu_kernel.default)(tensor_of(x), tensor_of(slopes))
    return restored(NATIVE.prelu(channels_last(x), tensor_of(slopes).reshape(-1)), x)


@rewrites(ATEN._prelu_kernel_backward.default)
def prelu_backward(dy: Any, x: Any, slopes: Any) -> Any:
    """The input's gradient, and of each value what it gives to its slope's."""
    if not _has_slopes_of_channels(x, slopes):
        return written_out(ATEN._prelu_kernel_backward.default)(tensor_of(dy), tensor_of(x), tensor_of(slopes))
    gradients = NATIVE.prelu_backward(channels_last(dy), channels_last(x), tensor_of(slopes).reshape(-1))
    return tuple(restored(gradient, x) for gradient in gradients)


def _has_slopes_of_channels(x: Any, slopes: Any) -> bool:
    plain = math.prod(slopes.shape) in (1, x.shape[1]) if len(x.shape) in (2, 3, 4) else False
    return plain and channels_last(x).dtype == torch.float32


@rewrites(ATEN.elu.default)
def elu(x: Any, alpha: float = 1, scale: float = 1, inner: float = 1) -> Any:
    """ELU; SELU is a form of it."""
    return _pointwise(NATIVE.elu, x, numbers=(alpha, scale, inner))


@rewrites(ATEN.celu.default)
def celu(x: Any, alpha: float = 1) -> Any:
    """An ELU that is smooth at 0 whatever ``alpha`` is."""
    return _pointwise(NATIVE.elu, x, numbers=(alpha, 1.0, 1.0 / alpha))


@rewrites(ATEN.elu_backward.default)
def elu_backward(dy: Any, alpha: float, scale: float, inner: float, is_result: bool, x: Any) -> Any:
    """Its gradient; from its result, which an activation in place leaves, written out."""
    if is_result:
        return written_out(ATEN.elu_backward.default)(tensor_of(dy), alpha, scale, inner, is_result, tensor_of(x))
    return _pointwise(NATIVE.elu_backward, dy, x, numbers=(alpha, scale, inner))


@rewrites(ATEN.softplus.default)
def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    """The logarithm of 1 + e^x."""
    return _pointwise(NATIVE.softplus, x, numbers=(beta, threshold))


@rewrites(ATEN.softplus_backward.default)
def softplus_backward(dy: Any, x: Any, beta: float, threshold: float) -> Any:
    """Its gradient."""
    return _pointwise(NATIVE.softplus_backward, dy, x, numbers=(beta, threshold))


@rewrites(ATEN.sigmoid.default)
def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    return _pointwise(NATIVE.sigmoid, x)


@rewrites(ATEN.sigmoid_backward.default)
def sigmoid_backward(dy: Any, y: Any) -> Any:
    """Its gradient, from its result."""
    return _pointwise(NATIVE.sigmoid_backward, dy, y)


@rewrites(ATEN.tanh.default)
def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return _pointwise(NATIVE.tanh, x)


@rewrites(ATEN.tanh_backward.default)
def tanh_backward(dy: Any, y: Any) -> Any:
    """Its gradient, from its result."""
    return _pointwise(NATIVE.tanh_backward, dy, y)


@rewrites(ATEN.silu.default)
def silu(x: Any) -> Any:
    """x times the sigmoid of x."""
    return _pointwise(NATIVE.silu, x)


@rewrites(ATEN.silu_backward.default)
def silu_backward(dy: Any, x: Any) -> Any:
    """Its gradient."""
    return _pointwise(NATIVE.silu_backward, dy, x)


@rewrites(ATEN.mish.default)
def mish(x: Any) -> Any:
    """x times the hyperbolic tangent of its softplus."""
    return _pointwise(NATIVE.mish, x)


@rewrites(ATEN.mish_backward.default)
def mish_backward(dy: Any, x: Any) -> Any:
    """Its gradient."""
    return _pointwise(NATIVE.mish_backward, dy, x)


def _pointwise(kernel: Any, *values: Any, numbers: tuple[float, ...] = ()) -> Any:
    """Images stay images; what is not float32 is left to the runtime."""
    given = [float(number) for number in numbers]
    if any(isinstance(value, Image) for value in values):
        return Image(kernel(*(image_of(value).pixels for value in values), *given))
    tensors: list[Tensor] = [tensor_of(value) for value in values]
    return kernel(*tensors, *given) if all(t.dtype == torch.float32 for t in tensors) else NotImplemented

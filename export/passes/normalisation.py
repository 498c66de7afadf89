"""Batch norm with its running statistics, over images, [M, C] and [N, C, L]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from export.passes.operators import NATIVE
from export.passes.rewriter import rewrites
from export.passes.values import Image, image_of, tensor_of

ATEN = torch.ops.aten


@rewrites(ATEN._native_batch_norm_legit_functional.default)
def with_running_statistics(
    x: Any, w: Any, b: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, Any, Any, Any, Any]:
    """Output, the batch's mean and 1/deviation, and the moved running statistics."""
    if not training:
        y, saved_mean, saved_rstd = _fixed(x, w, b, mean, variance, eps)
        return y, saved_mean, saved_rstd, mean, variance
    rows = channels_last(x)
    y, saved_mean, saved_rstd = NATIVE.batch_norm(rows, w, b, None, eps, False)
    moved = NATIVE.running_statistics(rows, saved_mean, saved_rstd, mean, variance, momentum, eps)
    return (restored(y, x), saved_mean, saved_rstd, *moved)


@rewrites(ATEN._native_batch_norm_legit.default)
def with_given_statistics(
    x: Any, w: Any, b: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> Any:
    """The form that functionalisation leaves alone: evaluation."""
    return NotImplemented if training else _fixed(x, w, b, mean, variance, eps)


@rewrites(ATEN._native_batch_norm_legit.no_stats)
def with_batch_statistics(x: Any, w: Any, b: Any, _training: bool, _momentum: float, eps: float) -> tuple[Any, ...]:
    """Output, and the batch's mean and 1/deviation."""
    y, mean, rstd = NATIVE.batch_norm(channels_last(x), w, b, None, eps, False)
    return restored(y, x), mean, rstd


@rewrites(ATEN.native_batch_norm_backward.default)
def backward(
    dy: Any,
    x: Any,
    w: Any,
    mean: Any,
    variance: Any,
    saved_mean: Any,
    saved_rstd: Any,
    training: bool,
    eps: float,
    _: Any,
) -> tuple[Any, Any, Any]:
    """Gradients of input, weight and bias."""
    gradient, rows = channels_last(dy), channels_last(x)
    if training:
        dx, dw, db = NATIVE.batch_norm_backward(gradient, rows, w, saved_mean, saved_rstd, None)
        return restored(dx, x), dw, db
    rstd = (variance + eps).rsqrt()
    scale = rstd if w is None else rstd * w
    scaled = (rows - mean) * rstd
    return restored(gradient * scale, x), NATIVE.channel_sum(gradient * scaled), NATIVE.channel_sum(gradient)


def channels_last(x: Any) -> Tensor:
    """[..., C] of a value [N, C, ...]."""
    if len(x.shape) == 4:
        return image_of(x).pixels
    tensor: Tensor = tensor_of(x)
    return NATIVE.permute(tensor, [0, 2, 1]) if tensor.dim() == 3 else tensor


def restored(y: Tensor, like: Any) -> Any:
    """The inverse of :func:`channels_last`."""
    if len(like.shape) == 4:
        return Image(y)
    return NATIVE.permute(y, [0, 2, 1]) if y.dim() == 3 else y


def _fixed(x: Any, w: Any, b: Any, mean: Any, variance: Any, eps: float) -> tuple[Any, Any, Any]:
    y = NATIVE.fixed_norm(channels_last(x), w, b, mean, variance, None, eps, False)
    return restored(y, x), mean, variance

"""Group norm, and instance norm as torch makes it of one, over images, [N, C] and [N, C, L]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from export.decompositions import written_out
from export.passes.normalisation import channels_last, restored
from export.passes.operators import NATIVE, define
from export.passes.rewriter import rewrites
from export.passes.values import tensor_of

ATEN = torch.ops.aten


def _channels_first(x: Tensor) -> Tensor:
    return x.movedim(-1, 1)


def _group_norm(x: Tensor, w: Any, b: Any, groups: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    images = _channels_first(x).contiguous()
    sizes = (images.shape[0], images.shape[1], images[0, 0].numel())
    y, mean, rstd = ATEN.native_group_norm(images, w, b, *sizes, groups, eps)
    return y.movedim(1, -1).contiguous(), mean, rstd


def _backward(dy: Tensor, x: Tensor, w: Any, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gradient, images = _channels_first(dy).contiguous(), _channels_first(x).contiguous()
    sizes = (images.shape[0], images.shape[1], images[0, 0].numel())
    scale = x.new_ones(x.shape[-1]) if w is None else w
    dx, dw, db = ATEN.native_group_norm_backward(
        gradient, images, mean, rstd, scale, *sizes, mean.shape[1], [True, True, True]
    )
    return dx.movedim(1, -1).contiguous(), dw, db


define(
    "group_norm(Tensor x, Tensor? w, Tensor? b, int groups, float eps)",
    3,
    lambda x, _w, _b, groups, _e: (
        torch.empty_like(x, memory_format=torch.contiguous_format),
        x.new_empty((x.shape[0], groups)),
        x.new_empty((x.shape[0], groups)),
    ),
    _group_norm,
)
define(
    "group_norm_backward(Tensor dy, Tensor x, Tensor? w, Tensor mean, Tensor rstd)",
    3,
    lambda _dy, x, *_: (
        torch.empty_like(x, memory_format=torch.contiguous_format),
        x.new_empty(x.shape[-1:]),
        x.new_empty(x.shape[-1:]),
    ),
    _backward,
)


@rewrites(ATEN.native_group_norm.default)
def group_norm(x: Any, w: Any, b: Any, _n: Any, _c: Any, _pixels: Any, groups: int, eps: float) -> Any:
    """Output, and mean and 1/deviation of every image's groups, [N, G]."""
    if len(x.shape) > 4 or _dtype(x) != torch.float32:
        return NotImplemented
    y, mean, rstd = NATIVE.group_norm(channels_last(x), tensor_of(w), tensor_of(b), groups, eps)
    return restored(y, x), mean, rstd


@rewrites(ATEN.native_group_norm_backward.default)
def group_norm_backward(
    dy: Any, x: Any, mean: Any, rstd: Any, w: Any, n: Any, c: Any, pixels: Any, groups: int, wanted: Any
) -> Any:
    """The gradients of input, weight and bias that are ``wanted``."""
    if len(x.shape) > 4 or _dtype(x) != torch.float32:
        plain = map(tensor_of, (dy, x, mean, rstd, w))
        return written_out(ATEN.native_group_norm_backward.default)(*plain, n, c, pixels, groups, wanted)
    gradients = NATIVE.group_norm_backward(
        channels_last(dy), channels_last(x), tensor_of(w), tensor_of(mean), tensor_of(rstd)
    )
    dx = restored(gradients[0], x) if wanted[0] else None
    return dx, gradients[1] if wanted[1] else None, gradients[2] if wanted[2] else None


def _dtype(x: Any) -> Any:
    return channels_last(x).dtype if not isinstance(x, Tensor) else x.dtype

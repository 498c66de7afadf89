"""The operators of the native ``layer_norm.cpp`` as torch sees them: layer norm over the rows of [M, N]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from export.passes.operators import define


def _layer_norm_shape(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[:1]), x.new_empty(x.shape[:1])


def _layer_norm(x: Tensor, w: Any, b: Any, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, rstd = torch.ops.aten.native_layer_norm(x, x.shape[1:], w, b, eps)
    return y, mean.reshape(-1), rstd.reshape(-1)


def _layer_norm_backward(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Any) -> Tensor:
    g, scaled = dy if w is None else dy * w, (x - mean[:, None]) * rstd[:, None]
    return rstd[:, None] * (g - g.mean(1, keepdim=True) - scaled * (g * scaled).mean(1, keepdim=True))


def _layer_norm_backward_add(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, w: Any, addend: Tensor) -> Tensor:
    return _layer_norm_backward(dy, x, mean, rstd, w) + addend.reshape(dy.shape)


def _layer_norm_weight_gradient(dy: Tensor, x: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    return (dy * (x - mean[:, None]) * rstd[:, None]).sum(0), dy.sum(0)


define("layer_norm(Tensor x, Tensor? w, Tensor? b, float eps)", 3, _layer_norm_shape, _layer_norm)
define(
    "layer_norm_backward(Tensor dy, Tensor x, Tensor mean, Tensor rstd, Tensor? w)",
    1,
    lambda dy, *_: torch.empty_like(dy),
    _layer_norm_backward,
)
define(
    "layer_norm_backward_add(Tensor dy, Tensor x, Tensor mean, Tensor rstd, Tensor? w, Tensor addend)",
    1,
    lambda dy, *_: torch.empty_like(dy),
    _layer_norm_backward_add,
)
define(
    "layer_norm_weight_gradient(Tensor dy, Tensor x, Tensor mean, Tensor rstd)",
    2,
    lambda dy, *_: (dy.new_empty(dy.shape[1:]), dy.new_empty(dy.shape[1:])),
    _layer_norm_weight_gradient,
)

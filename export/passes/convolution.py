"""Convolution and its gradients over [N, H, W, C] images, without im2col."""

from __future__ import annotations

from typing import Any

import torch

from export.passes.operators import NATIVE
from export.passes.rewriter import Unsupported, rewrites
from export.passes.values import Image, image_of, tensor_of

ATEN = torch.ops.aten


@rewrites(ATEN.convolution.default)
def convolution(
    x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, _extra: Any, groups: int
) -> Image:
    """``aten.convolution``, 2-D and not transposed."""
    _require_plain(w, transposed)
    return Image(NATIVE.convolution(image_of(x).pixels, tensor_of(w), tensor_of(b), stride, padding, dilation, groups))


@rewrites(ATEN.convolution_backward.default)
def convolution_backward(
    dy: Any,
    x: Any,
    w: Any,
    _bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    _extra: Any,
    groups: int,
    wanted: Any,
) -> tuple[Any, Any, Any]:
    """The gradients of input, weight and bias that are ``wanted``."""
    _require_plain(w, transposed)
    window = (stride, padding, dilation, groups)
    gradient, image, weight = image_of(dy).pixels, image_of(x).pixels, tensor_of(w)
    dx = dw = db = None
    if wanted[0]:
        dx = Image(NATIVE.convolution_input_gradient(gradient, weight, list(image.shape[1:3]), *window))
    if wanted[1]:
        dw = NATIVE.convolution_weight_gradient(image, gradient, list(weight.shape[2:]), *window)
    if wanted[2]:
        db = NATIVE.channel_sum(gradient)
    return dx, dw, db


def _require_plain(w: Any, transposed: bool) -> None:
    if transposed:
        raise Unsupported("a transposed convolution has no kernel on this runtime", "Upsample and Conv2d")
    if len(w.shape) != 4:
        raise Unsupported(f"a {len(w.shape) - 2}-D convolution has no kernel on this runtime", "Conv2d")

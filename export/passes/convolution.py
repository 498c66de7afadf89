"""Convolution and its gradients over [N, H, W, C] images, without im2col; signals are images of height 1."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from export.passes import sparse
from export.passes.operators import NATIVE
from export.passes.rewriter import Unsupported, rewrites
from export.passes.values import Image, SparseWeight, image_of, tensor_of

ATEN = torch.ops.aten


@rewrites(ATEN.convolution.default)
def convolution(
    x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any, groups: int
) -> Any:
    """``aten.convolution`` in one and two dimensions, transposed too."""
    window = _window(w, stride, padding, dilation, groups)
    if isinstance(w, SparseWeight) and not transposed:
        return _restored(sparse.convolution(_pixels(x), w, tensor_of(b), window), x)
    pixels, weight = _pixels(x), _weight(w)
    if not transposed:
        return _restored(NATIVE.convolution(pixels, weight, tensor_of(b), *window), x)
    # A transposed convolution is the input gradient of the convolution with the same weights.
    size = _transposed_size(pixels, weight, *window[:3], extra if len(extra) == 2 else [0, *extra])
    y = NATIVE.convolution_input_gradient(pixels, weight, size, *window)
    return _restored(y if b is None else y + tensor_of(b), x)


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
    window = _window(w, stride, padding, dilation, groups)
    gradient, pixels = _pixels(dy), _pixels(x)
    dx = dw = None
    db = NATIVE.channel_sum(gradient) if wanted[2] else None
    if isinstance(w, SparseWeight) and not transposed:
        if wanted[0]:
            size = list(pixels.shape[1:3])
            dx = _restored(sparse.convolution_input_gradient(gradient, w, size, window), x)
        if wanted[1]:
            dw = sparse.convolution_weight_gradient(pixels, gradient, w, window)
        return dx, dw, db
    weight = _weight(w)
    kernel = list(weight.shape[2:])
    if wanted[0] and transposed:
        dx = _restored(NATIVE.convolution(gradient, weight, None, *window), x)
    elif wanted[0]:
        dx = _restored(NATIVE.convolution_input_gradient(gradient, weight, list(pixels.shape[1:3]), *window), x)
    if wanted[1]:
        left, right = (gradient, pixels) if transposed else (pixels, gradient)
        dw = NATIVE.convolution_weight_gradient(left, right, kernel, *window).reshape(w.shape)
    return dx, dw, db


def _window(w: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> tuple[Any, Any, Any, int]:
    if len(w.shape) == 4:
        return stride, padding, dilation, groups
    if len(w.shape) == 3:
        return [1, *stride], [0, *padding], [1, *dilation], groups
    raise Unsupported(f"a {len(w.shape) - 2}-D convolution has no kernel on this runtime", "Conv2d")


def _pixels(x: Any) -> Tensor:
    """[N, H, W, C] of an image, or of a signal [N, C, L] as an image of height 1."""
    if len(x.shape) == 4:
        return image_of(x).pixels
    rows: Tensor = NATIVE.permute(tensor_of(x), [0, 2, 1])
    return rows.unsqueeze(1)


def _weight(w: Any) -> Tensor:
    weight: Tensor = tensor_of(w)
    return weight if weight.dim() == 4 else weight.unsqueeze(2)


def _restored(y: Tensor, like: Any) -> Any:
    return Image(y) if len(like.shape) == 4 else NATIVE.permute(y.squeeze(1), [0, 2, 1])


def _transposed_size(x: Tensor, w: Tensor, stride: Any, padding: Any, dilation: Any, extra: Any) -> list[int]:
    return [
        (x.shape[1 + i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (w.shape[2 + i] - 1) + extra[i] + 1
        for i in (0, 1)
    ]

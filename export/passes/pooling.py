"""Max and average pooling over [N, H, W, C] images, overlapping windows too."""

from __future__ import annotations

from typing import Any

import torch

from export.passes.operators import ADAPTIVE, NATIVE
from export.passes.rewriter import rewrites
from export.passes.values import Image, PooledMaximum, image_of

ATEN = torch.ops.aten


@rewrites(ATEN.max_pool2d_with_indices.default)
def max_pool(
    x: Any, kernel: Any, stride: Any = (), padding: Any = (0, 0), dilation: Any = (1, 1), ceil: bool = False
) -> Any:
    """The pooled image; in place of indices what :func:`max_pool_backward` needs."""
    image = image_of(x)
    kernel, stride, padding, dilation = _window(kernel, stride, padding, dilation)
    size = _size(image, kernel, stride, padding, dilation, ceil)
    y = NATIVE.max_pool(image.pixels, kernel, stride, padding, dilation, size)
    return Image(y), PooledMaximum(y)


@rewrites(ATEN.max_pool2d_with_indices_backward.default)
def max_pool_backward(
    dy: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, _ceil: bool, indices: PooledMaximum
) -> Image:
    """The gradient goes to the first maximum of each window, as in torch."""
    window = _window(kernel, stride, padding, dilation)
    return Image(NATIVE.max_pool_backward(image_of(dy).pixels, image_of(x).pixels, indices.pixels, *window))


@rewrites(ATEN.avg_pool2d.default)
def average_pool(
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0, 0),
    ceil: bool = False,
    counts_padding: bool = True,
    divisor: int | None = None,
) -> Image:
    """``aten.avg_pool2d``."""
    image = image_of(x)
    kernel, stride, padding, ones = _window(kernel, stride, padding, (1, 1))
    size = _size(image, kernel, stride, padding, ones, ceil)
    return Image(NATIVE.average_pool(image.pixels, kernel, stride, padding, size, counts_padding, divisor or 0))


@rewrites(ATEN.avg_pool2d_backward.default)
def average_pool_backward(
    dy: Any, x: Any, kernel: Any, stride: Any, padding: Any, _ceil: bool, counts_padding: bool, divisor: int | None
) -> Image:
    """Each input pixel gets its share of every window it is in."""
    size = list(x.shape[2:])
    kernel, stride, padding, _ = _window(kernel, stride, padding, (1, 1))
    gradient = image_of(dy).pixels
    return Image(NATIVE.average_pool_backward(gradient, size, kernel, stride, padding, counts_padding, divisor or 0))


@rewrites(ATEN._adaptive_avg_pool2d.default)
def adaptive_average_pool(x: Any, size: Any) -> Image:
    """Adaptive pooling: windows of one size where the image's divides, else of neighbouring sizes."""
    window = _adaptive_window(x.shape[2:], size)
    return Image(NATIVE.average_pool(image_of(x).pixels, window, window, [0, 0], list(size), False, 0))


@rewrites(ATEN._adaptive_avg_pool2d_backward.default)
def adaptive_average_pool_backward(dy: Any, x: Any) -> Image:
    """The gradient of :func:`adaptive_average_pool`."""
    window = _adaptive_window(x.shape[2:], dy.shape[2:])
    return Image(NATIVE.average_pool_backward(image_of(dy).pixels, list(x.shape[2:]), window, window, [0, 0], False, 0))


def global_average(x: Any) -> Image:
    """The mean over all pixels, [N, C, 1, 1]."""
    image = image_of(x)
    size = list(image.shape[2:])
    return Image(NATIVE.average_pool(image.pixels, size, size, [0, 0], [1, 1], True, 0))


def _adaptive_window(size: Any, output: Any) -> list[int]:
    if any(s % o for s, o in zip(size, output, strict=True)):
        return ADAPTIVE
    return [s // o for s, o in zip(size, output, strict=True)]


def _window(kernel: Any, stride: Any, padding: Any, dilation: Any) -> tuple[list[int], list[int], list[int], list[int]]:
    def pair(values: Any) -> list[int]:
        return [values[0], values[-1]]

    return pair(kernel), pair(stride) if len(stride) else pair(kernel), pair(padding), pair(dilation)


def _size(image: Image, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> list[int]:
    """Output size by torch's rule: with ``ceil`` a last window may stick out but starts inside image or padding."""
    sizes = []
    for i, size in enumerate(image.shape[2:]):
        room = size + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1
        count = (room + (stride[i] - 1 if ceil else 0)) // stride[i] + 1
        if ceil and (count - 1) * stride[i] >= size + padding[i]:
            count -= 1
        sizes.append(count)
    return sizes

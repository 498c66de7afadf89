"""Sliding windows cut out of images (``Unfold``) and added back up (``Fold``): convolutions with one-hot kernels.

Legend: N batch, C channels, T kernel taps, P window positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import fx

from export.formats.onnx_step.operators.geometry import Window
from export.formats.onnx_step.operators.weight_gradient import one_hot_columns, tap_kernels
from export.formats.onnx_step.translation import Translation, translates


@translates("im2col")
def unfold(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> str:
    """[N, C, *image] -> [N, C*T, P]."""
    window = Window.padded(kernel, stride, padding, dilation, 1)
    columns = one_hot_columns(t, t.value(x), t.fixed_shape(x)[0], window)
    return t.make.node("Reshape", columns, t.dims.shape(t.tensor(node).shape))


@translates("col2im")
def fold(
    t: Translation,
    node: fx.Node,
    columns: fx.Node,
    image: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> str:
    """[N, C*T, P] -> [N, C, *image]."""
    channels = t.fixed_shape(node)[0]
    window = Window.padded(kernel, stride, padding, dilation, channels)
    reach = [s + 2 * p - d * (k - 1) - 1 for s, p, d, k in zip(image, padding, dilation, kernel, strict=True)]
    positions = [size // step + 1 for size, step in zip(reach, stride, strict=True)]
    sizes = [t.tensor(columns).shape[0], channels * window.taps, *positions]
    given = {**window.attributes, "output_padding": window.unreached(image)}
    flat = t.make.node("Reshape", t.value(columns), t.dims.shape(sizes))
    return t.make.node("ConvTranspose", flat, np.ascontiguousarray(tap_kernels(channels, window)), **given)

"""The gradient of a convolution's weight: one matrix product per kernel tap, or per image where channels are few.

Measured on x86-64 with ONNX Runtime: as one big Conv the whole ResNet-20 step is 1.5 times slower, as a gathered
im2col far slower still.

Legend: N batch, C input channels, K output channels, G groups, T kernel taps, P output positions.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from torch import fx

from export.formats.onnx_step.translation import Translation, product

_FEW_CHANNELS = 4
"""Up to this many input channels im2col is a Conv with one-hot kernels; the copy is small and one product is left."""


@dataclass(frozen=True)
class Window:
    """How a kernel moves: all lists have one entry per spatial dimension."""

    kernel: list[int]
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    @property
    def taps(self) -> int:
        return product(self.kernel)

    @property
    def rank(self) -> int:
        return len(self.kernel)

    def is_pointwise(self) -> bool:
        """One tap, no padding: a matrix product over (possibly strided) positions."""
        return self.taps == 1 and not any(self.padding)

    def is_tiling(self, image: list[int]) -> bool:
        """Whether the windows cut the image into patches without overlap or rest."""
        exact = all(size % k == 0 for size, k in zip(image, self.kernel, strict=True))
        return self.kernel == self.stride and not any(self.padding) and max(self.dilation) == 1 and exact


def weight_gradient(t: Translation, x: fx.Node, dy: fx.Node, window: Window) -> str:
    """dL/dW [K, C/G, *kernel] of y = conv(x, W).

    Args:
        x: [N, C, *image]
        dy: [N, K, *positions]
    """
    channels, *image = t.fixed_shape(x)
    filters, *positions = t.fixed_shape(dy)
    shape = [filters, channels // window.groups, *window.kernel]
    if window.groups == 1 and window.is_pointwise():
        strided = _strided(t, t.value(x), [0] * window.rank, positions, window)
        return _per_image(t, strided, t.value(dy), channels, filters, positions, shape)
    if window.groups == 1 and window.is_tiling(image):
        return _per_patch(t, t.value(x), t.value(dy), channels, filters, positions, window, shape)
    if window.groups == 1 and channels <= _FEW_CHANNELS:
        columns = _one_hot_columns(t, t.value(x), channels, window)
        return _per_image(t, columns, t.value(dy), channels * window.taps, filters, positions, shape)
    return _per_tap(t, t.value(x), t.value(dy), channels, filters, positions, window, shape)


def _per_image(
    t: Translation, columns: str, dy: str, rows: int, filters: int, positions: list[int], shape: list[int]
) -> str:
    """Sum over the batch of dy_KP @ columns_RP^T."""
    count = product(positions)
    dy_NKP = t.make.node("Reshape", dy, [0, filters, count])
    columns_NPR = t.make.node("Transpose", t.make.node("Reshape", columns, [0, rows, count]), perm=[0, 2, 1])
    summed = t.make.node("ReduceSum", t.make.node("MatMul", dy_NKP, columns_NPR), [0], keepdims=0)
    return t.make.node("Reshape", summed, shape)


def _per_patch(
    t: Translation, x: str, dy: str, channels: int, filters: int, positions: list[int], window: Window, shape: list[int]
) -> str:
    """Patches without overlap: one reshape, one transpose, one product (the patch embedding of a ViT)."""
    rank, split = window.rank, [0, channels]
    for count, k in zip(positions, window.kernel, strict=True):
        split += [count, k]
    order = [0, *(2 + 2 * d for d in range(rank)), 1, *(3 + 2 * d for d in range(rank))]
    patches = t.make.node("Transpose", t.make.node("Reshape", x, split), perm=order)
    patches_PR = t.make.node("Reshape", patches, [-1, channels * window.taps])
    dy_last = t.make.node("Transpose", dy, perm=[0, *range(2, 2 + rank), 1])
    dy_PK = t.make.node("Reshape", dy_last, [-1, filters])
    return t.make.node("Reshape", t.make.node("Gemm", dy_PK, patches_PR, transA=1), shape)


def _one_hot_columns(t: Translation, x: str, channels: int, window: Window) -> str:
    """im2col [N, C*T, *positions] as a grouped Conv whose kernels pick one tap each."""
    picks = np.eye(window.taps, dtype=np.float32).reshape([window.taps, 1, *window.kernel])
    return t.make.node(
        "Conv",
        x,
        np.tile(picks, (channels, 1, *[1] * window.rank)),
        group=channels,
        strides=window.stride,
        pads=[*window.padding, *window.padding],
        dilations=window.dilation,
    )


def _per_tap(
    t: Translation, x: str, dy: str, channels: int, filters: int, positions: list[int], window: Window, shape: list[int]
) -> str:
    """One Gemm per tap in channel-major layout: dW[:, :, tap] = dy_K(NP) @ x_C(NP)^T, shifted by the tap."""
    rank, groups = window.rank, window.groups
    swap = [1, 0, *range(2, 2 + rank)]
    padded = t.make.node("Pad", x, [0, 0, *window.padding] * 2) if any(window.padding) else x
    x_CN = t.make.node("Transpose", padded, perm=swap)
    dy_KN = t.make.node("Transpose", dy, perm=swap)
    dy_rows = t.make.node("Reshape", dy_KN, [filters, -1] if groups == 1 else [groups, filters // groups, -1])
    products = []
    for tap in itertools.product(*[range(k) for k in window.kernel]):
        shifted = _strided(t, x_CN, [i * d for i, d in zip(tap, window.dilation, strict=True)], positions, window)
        if groups == 1:
            columns = t.make.node("Reshape", shifted, [channels, -1])
            products.append(t.make.node("Unsqueeze", t.make.node("Gemm", dy_rows, columns, transB=1), [2]))
        else:
            columns = t.make.node("Reshape", shifted, [groups, channels // groups, -1])
            turned = t.make.node("Transpose", columns, perm=[0, 2, 1])
            products.append(t.make.node("Unsqueeze", t.make.node("MatMul", dy_rows, turned), [3]))
    axis = 2 if groups == 1 else 3
    stacked = t.make.node("Concat", *products, axis=axis) if len(products) > 1 else products[0]
    return t.make.node("Reshape", stacked, shape)


def _strided(t: Translation, x: str, first: list[int], positions: list[int], window: Window) -> str:
    """Every stride-th position of the last dimensions, as many as there are output positions."""
    if not any(first) and max(window.stride) == 1 and window.taps == 1:
        return x
    last = [f + s * (p - 1) + 1 for f, s, p in zip(first, window.stride, positions, strict=True)]
    axes = list(range(2, 2 + window.rank))
    return t.make.node("Slice", x, first, last, axes, window.stride)

"""The gradient of a convolution's weight as matrix products of shifted copies.

Measured on x86-64 with ONNX Runtime: as one big Conv the whole ResNet-20 step is 1.5 times slower, as a gathered
im2col far slower still; one product per kernel tap from padded slices takes 1.6 times what is done here.

Legend: N batch, C input channels, K output channels, G groups, T kernel taps, P positions.
"""

from __future__ import annotations

import itertools

import numpy as np
from onnx import numpy_helper
from torch import fx

from export.formats.onnx_step.operators.geometry import Window
from export.formats.onnx_step.operators.small_images import is_one_product, one_product
from export.formats.onnx_step.translation import Translation, product

_FEW_CHANNELS = 4
"""Up to this many input channels im2col is a Conv with one-hot kernels; the copy is small and one product is left."""
_LARGE_IMAGE = 512
"""From this many output positions on, one product per image beats the transposes into [C, ..., N] (measured)."""


def weight_gradient(t: Translation, x: fx.Node, dy: fx.Node, window: Window) -> str:
    """dL/dW [K, C/G, *kernel] of y = conv(x, W).

    Args:
        x: [N, C, *image]
        dy: [N, K, *positions]
    """
    channels, *image = t.fixed_shape(x)
    filters, *positions = t.fixed_shape(dy)
    shape = [filters, channels // window.groups, *window.kernel]
    if window.groups == 1 and window.is_whole(image):
        rows, columns = (
            t.make.node("Reshape", t.value(v), [-1, n]) for v, n in ((dy, filters), (x, product(shape[1:])))
        )
        return t.make.node("Reshape", t.make.node("Gemm", rows, columns, transA=1), shape)
    if window.groups == 1 and window.is_pointwise():
        strided = _strided(t, t.value(x), positions, window)
        if is_one_product(channels, filters, product(positions)):
            return t.make.node("Reshape", one_product(t, strided, t.value(dy), channels, filters, window.rank), shape)
        return _per_image(t, strided, t.value(dy), channels, filters, positions, shape)
    if window.groups == 1 and window.is_tiling(image):
        return _per_patch(t, t.value(x), t.value(dy), channels, filters, positions, window, shape)
    if window.groups == 1 and channels <= _FEW_CHANNELS:
        columns = one_hot_columns(t, t.value(x), channels, window)
        return _per_image(t, columns, t.value(dy), channels * window.taps, filters, positions, shape)
    return _per_shift(t, x, dy, channels, filters, window, shape)


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


def one_hot_columns(t: Translation, x: str, channels: int, window: Window) -> str:
    """im2col [N, C*T, *positions] as a grouped Conv whose kernels pick one tap each."""
    return t.make.node(
        "Conv",
        x,
        tap_kernels(channels, window),
        group=channels,
        strides=window.stride,
        pads=[*window.before, *window.after],
        dilations=window.dilation,
    )


def tap_kernels(channels: int, window: Window) -> np.ndarray:
    """[C*T, 1, *kernel]: for every channel one kernel per tap, 1 there and 0 elsewhere."""
    picks = np.eye(window.taps, dtype=np.float32).reshape([window.taps, 1, *window.kernel])
    return np.tile(picks, (channels, 1, *[1] * window.rank))


def _per_shift(
    t: Translation, x: fx.Node, dy: fx.Node, channels: int, filters: int, window: Window, shape: list[int]
) -> str:
    """Products of shifted copies, as few and as cheap to copy as the window allows.

    With stride 1, dy is shifted along the rows instead of x, and all row taps become rows of one matrix. Large images
    stay [N, C, ...] with one product per image; small ones go to [C, ..., N], where a shift moves long runs of memory.
    """
    image, positions = t.fixed_shape(x, 2), t.fixed_shape(dy, 2)
    if product(positions) >= _LARGE_IMAGE:
        parts = []
        for i in range(t.batch_parts):
            x_value, dy_value = _every(t, t.value(x), i), _every(t, t.value(dy), i)
            size = t.make.node("Shape", x_value, start=0, end=1) if t.batch_parts > 1 else _batch(t, x)
            shifts = _Shifts(t, size, first_axis=2, batch_last=False)
            parts.append(
                _shifted_products(t, shifts, x_value, dy_value, image, positions, channels, filters, window, shape)
            )
        return _sum(t, parts)
    order = [*range(1, 2 + window.rank), 0]
    x_value, dy_value = (t.make.node("Transpose", t.value(node), perm=order) for node in (x, dy))
    shifts = _Shifts(t, _batch(t, x), first_axis=1, batch_last=True)
    return _shifted_products(t, shifts, x_value, dy_value, image, positions, channels, filters, window, shape)


def _every(t: Translation, value: str, first: int) -> str:
    """Of every ``batch_parts`` images the one at place ``first``; a batch of fewer leaves some parts empty."""
    if t.batch_parts == 1:
        return value
    return t.make.node("Slice", value, [first], [np.iinfo(np.int64).max], [0], [t.batch_parts])


def _batch(t: Translation, x: fx.Node) -> str:
    return t.dims.vector(t.dims.size(t.tensor(x).shape[0]))


def _sum(t: Translation, values: list[str]) -> str:
    total = values[0]
    for value in values[1:]:
        total = t.make.node("Add", total, value)
    return total


def _shifted_products(
    t: Translation,
    shifts: _Shifts,
    x_value: str,
    dy_value: str,
    image: list[int],
    positions: list[int],
    channels: int,
    filters: int,
    window: Window,
    shape: list[int],
) -> str:
    """Sum over the batch of all products, put together into the weight's ``shape``."""
    is_per_image = not shifts.batch_last
    rows, stacked = window.kernel[0], window.stride[0] == 1
    if stacked:
        moved = [shifts.pieces(dy_value, 0, filters, positions, image[0], -window.offset(0, i), 1) for i in range(rows)]
        dy_value = t.make.node("Concat", *itertools.chain(*moved), axis=shifts.first_axis)
    versions = [(x_value, list(image))]
    for dim in range(1 if stacked else 0, window.rank):
        taps = range(window.kernel[dim])
        versions = [
            shifts.shifted(value, dim, channels, sizes, positions[dim], window.offset(dim, i), window.stride[dim])
            for value, sizes in versions
            for i in taps
        ]
    height = filters * rows if stacked else filters
    # A part of the batch may be empty, and of what is empty no size can be inferred.
    places = product([image[0] if stacked else positions[0], *positions[1:]]) if is_per_image else -1
    products = [
        _product(t, dy_value, value, height, channels, places, window.groups, is_per_image) for value, _ in versions
    ]
    wide = [t.make.node("Unsqueeze", p, [2]) for p in products]
    result = t.make.node("Concat", *wide, axis=2) if len(wide) > 1 else wide[0]
    if not stacked or rows == 1:
        return t.make.node("Reshape", result, shape)
    split = t.make.node("Reshape", result, [filters, rows, shape[1], *shape[3:]])
    return t.make.node("Transpose", split, perm=[0, 2, 1, *range(3, 2 + window.rank)])


def _product(
    t: Translation, dy: str, x: str, height: int, channels: int, places: int, groups: int, is_per_image: bool
) -> str:
    """dy_KP @ x_CP^T [height, channels / groups], summed over the batch."""
    if not is_per_image and groups == 1:
        left, right = t.make.node("Reshape", dy, [height, -1]), t.make.node("Reshape", x, [channels, -1])
        return t.make.node("Gemm", left, right, transB=1)
    lead = [0] if is_per_image else []
    lead += [groups] if groups > 1 else []
    left = t.make.node("Reshape", dy, [*lead, height // groups, places])
    right = t.make.node("Reshape", x, [*lead, channels // groups, places])
    if groups == channels:  # many columns of one row: 4.6 times as fast as one column of many rows (measured)
        left, right = right, left
    rank = len(lead) + 2
    turned = t.make.node("Transpose", right, perm=[*range(rank - 2), rank - 1, rank - 2])
    result = t.make.node("MatMul", left, turned)
    if is_per_image:
        result = t.make.node("ReduceSum", result, [0], keepdims=0)
    return t.make.node("Reshape", result, [height, channels // groups]) if groups > 1 else result


class _Shifts:
    """Shifted copies of tensors in one of the two layouts, with zeros where the window leaves the image.

    Slice and Concat move whole runs of memory, mostly as fast as Pad or faster. Only runs as short as a row are faster
    in one pass than in two: 0.65 of the time for images of 32 x 32 (measured).
    """

    def __init__(self, t: Translation, batch: str, *, first_axis: int, batch_last: bool) -> None:
        """Args: batch: the number of images, an int64 vector of one element."""
        self._t = t
        self._batch = batch
        self.batch_last = batch_last
        self.first_axis = first_axis

    def shifted(
        self, value: str, dim: int, channels: int, sizes: list[int], count: int, offset: int, stride: int
    ) -> tuple[str, list[int]]:
        """``count`` positions offset, offset + stride, ... of spatial dimension ``dim``; and the new sizes."""
        new = [*sizes[:dim], count, *sizes[dim + 1 :]]
        if offset == 0 and stride == 1 and count == sizes[dim]:
            return value, new
        axis = self.first_axis + dim
        if stride == 1 and count == sizes[dim] and not self.batch_last and dim == len(sizes) - 1:
            pads = [0] * (2 * (axis + 1))
            pads[axis], pads[-1] = -offset, offset
            return self._t.make.node("Pad", value, pads), new
        parts = self.pieces(value, dim, channels, sizes, count, offset, stride)
        return (self._t.make.node("Concat", *parts, axis=axis) if len(parts) > 1 else parts[0]), new

    def pieces(
        self, value: str, dim: int, channels: int, sizes: list[int], count: int, offset: int, stride: int
    ) -> list[str]:
        """The shifted copy in parts, to be joined along ``dim``: zeros, a slice, zeros; empty ones left out."""
        size, axis = sizes[dim], self.first_axis + dim
        first = min(count, max(0, -(offset // stride)))
        end = max(first, min(count, (size - 1 - offset) // stride + 1))
        if first == end:
            return [self._zeros(channels, sizes, dim, count)]
        start, stop = first * stride + offset, (end - 1) * stride + offset + 1
        whole = start == 0 and stop == size and stride == 1
        middle = value if whole else self._t.make.node("Slice", value, [start], [stop], [axis], [stride])
        before = [self._zeros(channels, sizes, dim, first)] if first else []
        after = [self._zeros(channels, sizes, dim, count - end)] if end < count else []
        return [*before, middle, *after]

    def _zeros(self, channels: int, sizes: list[int], dim: int, count: int) -> str:
        shape = [self._t.dims.vector(size) for size in (channels, *sizes[:dim], count, *sizes[dim + 1 :])]
        vector = self._t.make.node(
            "Concat", *([*shape, self._batch] if self.batch_last else [self._batch, *shape]), axis=0
        )
        return self._t.make.node("ConstantOfShape", vector, value=numpy_helper.from_array(np.zeros(1, np.float32)))


def _strided(t: Translation, x: str, positions: list[int], window: Window) -> str:
    """Every stride-th position of the last dimensions, as many as there are output positions."""
    if max(window.stride) == 1:
        return x
    last = [s * (p - 1) + 1 for s, p in zip(window.stride, positions, strict=True)]
    axes = list(range(2, 2 + window.rank))
    return t.make.node("Slice", x, [0] * window.rank, last, axes, window.stride)

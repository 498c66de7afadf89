"""Max, average and adaptive pooling with their backward passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import numpy_helper
from torch import fx

from export.formats.onnx_step.translation import Translation, translates


@translates("max_pool2d_with_indices")
def max_pool(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> tuple[str, ...]:
    kernel, stride, padding, dilation = _pairs(kernel, stride or kernel, padding, dilation)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": stride, "pads": [*padding, *padding]}
    return t.make.node_with_outputs(
        "MaxPool", 2, t.value(x), **attributes, dilations=dilation, ceil_mode=int(ceil_mode)
    )


@translates("max_pool2d_with_indices_backward")
def max_pool_backward(
    t: Translation,
    node: fx.Node,
    dy: fx.Node,
    x: fx.Node,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: fx.Node,
) -> str:
    return unpooled(t, node, t.value(dy))


def unpooled(t: Translation, node: fx.Node, dy: str) -> str:
    """``dy`` of pooled size, each value moved to where its window had its maximum.

    Args:
        node: the backward node that names the window and the indices.
    """
    _, x, kernel, stride, padding, dilation, ceil_mode, indices = node.args
    kernel, stride, padding, dilation = _pairs(kernel, stride or kernel, padding, dilation)
    shape = t.dims.shape(t.tensor(x).shape, infer=False)
    if kernel == stride and not any(padding) and max(dilation) == 1 and not ceil_mode:
        return t.make.node("MaxUnpool", dy, t.value(indices), shape, kernel_shape=kernel, strides=stride)
    # Windows that overlap share their maximum, so gradients add up. The indices count over the whole tensor.
    size = t.make.node("ReduceProd", shape, keepdims=1)
    zeros = t.make.node("ConstantOfShape", size, value=numpy_helper.from_array(np.zeros(1, np.float32)))
    flat_dy, flat_indices = (t.make.node("Reshape", v, [-1]) for v in (dy, t.value(indices)))
    summed = t.make.node("ScatterElements", zeros, flat_indices, flat_dy, axis=0, reduction="add")
    return t.make.node("Reshape", summed, shape)


@translates("avg_pool2d")
def average_pool(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> str:
    kernel, stride, padding = _pairs(kernel, stride or kernel, padding)
    if not ceil_mode and divisor is None:
        attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": stride, "pads": [*padding, *padding]}
        return t.make.node("AveragePool", t.value(x), **attributes, count_include_pad=int(count_include_pad))
    return _apply(t, t.value(x), _averaging(t, x, node, kernel, stride, padding, count_include_pad, divisor))


@translates("avg_pool2d_backward")
def average_pool_backward(
    t: Translation,
    node: fx.Node,
    dy: fx.Node,
    x: fx.Node,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> str:
    kernel, stride, padding = _pairs(kernel, stride or kernel, padding)
    matrices = _averaging(t, x, dy, kernel, stride, padding, count_include_pad, divisor)
    return _apply(t, t.value(dy), [m.T for m in matrices])


@translates("_adaptive_avg_pool2d")
def adaptive_average_pool(t: Translation, node: fx.Node, x: fx.Node, _: Sequence[int]) -> str:
    return _apply(t, t.value(x), _adaptive(t, x, node))


@translates("_adaptive_avg_pool2d_backward")
def adaptive_average_pool_backward(t: Translation, node: fx.Node, dy: fx.Node, x: fx.Node) -> str:
    return _apply(t, t.value(dy), [m.T for m in _adaptive(t, x, dy)])


def _pairs(*values: Sequence[int] | int) -> list[list[int]]:
    full = [[v, v] if isinstance(v, int) else list(v) for v in values]
    return [v * 2 if len(v) == 1 else v for v in full]


def _spatial(t: Translation, node: fx.Node) -> list[int]:
    return t.fixed_shape(node, t.tensor(node).dim() - 2)


def _averaging(
    t: Translation,
    x: fx.Node,
    y: fx.Node,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    count_include_pad: bool,
    divisor: int | None,
) -> list[np.ndarray]:
    """Per spatial dimension the matrix [positions, image] that averages one axis; average pooling is their product."""
    matrices = []
    for size, count, k, s, p in zip(_spatial(t, x), _spatial(t, y), kernel, stride, padding, strict=True):
        matrix = np.zeros((count, size), np.float32)
        for i in range(count):
            start, end = i * s - p, min(i * s - p + k, size + p)
            inside = slice(max(start, 0), min(end, size))
            matrix[i, inside] = 1.0 / (end - start if count_include_pad else inside.stop - inside.start)
            if divisor is not None:
                matrix[i, inside] = 1.0
        matrices.append(matrix)
    if divisor is not None:
        matrices[0] /= divisor
    return matrices


def _adaptive(t: Translation, x: fx.Node, y: fx.Node) -> list[np.ndarray]:
    """The averaging matrices of adaptive pooling: position i covers floor(i*size/count) .. ceil((i+1)*size/count)."""
    matrices = []
    for size, count in zip(_spatial(t, x), _spatial(t, y), strict=True):
        matrix = np.zeros((count, size), np.float32)
        for i in range(count):
            start, end = i * size // count, -(-(i + 1) * size // count)
            matrix[i, start:end] = 1.0 / (end - start)
        matrices.append(matrix)
    return matrices


def _apply(t: Translation, x: str, matrices: Sequence[np.ndarray]) -> str:
    """rows @ x @ columns^T over the last two dimensions; an axis of one position is a scaled copy or a mean."""
    rows, columns = matrices
    result = x if _is_identity(columns) else t.make.node("MatMul", x, np.ascontiguousarray(columns.T))
    return result if _is_identity(rows) else t.make.node("MatMul", np.ascontiguousarray(rows), result)


def _is_identity(matrix: np.ndarray) -> bool:
    return matrix.shape[0] == matrix.shape[1] and bool((matrix == np.eye(len(matrix), dtype=matrix.dtype)).all())

"""The native library's operators as torch sees them: schemas with their out variants, shapes, and a plain meaning.

The meanings are written in ordinary torch and serve as the numeric reference of every rewrite; the device runs the C++
kernels of the same names. Images are [N, H, W, C] and contiguous. Legend: M rows, K depth, G groups, O output channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import export.recurrent  # noqa: F401  the layer operations whose shapes are reused here

NAMESPACE = "apportion_native"
_LIBRARY = torch.library.Library(NAMESPACE, "DEF")
NATIVE: Any = getattr(torch.ops, NAMESPACE)

Shape = Callable[..., Any]
_WINDOW = "int[] stride, int[] padding, int[] dilation"


def define(signature: str, outputs: int, shape: Shape, meaning: Callable[..., Any] | None) -> None:
    """Register ``name(arguments)`` with ``outputs`` tensors, its out variant, shapes and meaning."""
    name, _, arguments = signature.partition("(")
    arguments = arguments.rstrip(")")
    given = "Tensor" if outputs == 1 else "(" + ", ".join(["Tensor"] * outputs) + ")"
    marks = [f"Tensor({chr(ord('a') + i)}!)" for i in range(outputs)]
    names = ["out"] if outputs == 1 else [f"out{i}" for i in range(outputs)]
    outs = ", ".join(f"{mark} {n}" for mark, n in zip(marks, names, strict=True))
    _LIBRARY.define(f"{name}({arguments}) -> {given}")
    _LIBRARY.define(
        f"{name}.out({arguments}, *, {outs}) -> {marks[0] if outputs == 1 else '(' + ', '.join(marks) + ')'}"
    )
    _LIBRARY.impl(name, shape, "Meta")

    def unused_out(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{name}.out runs on devices only")

    _LIBRARY.impl(f"{name}.out", unused_out, "CompositeExplicitAutograd")
    if meaning is not None:
        _LIBRARY.impl(name, meaning, "CPU")


def nhwc(x: Tensor) -> Tensor:
    """[N, C, H, W] to [N, H, W, C], contiguous."""
    return x.permute(0, 2, 3, 1).contiguous()


def nchw(x: Tensor) -> Tensor:
    """[N, H, W, C] to [N, C, H, W], contiguous."""
    return x.permute(0, 3, 1, 2).contiguous()


def _like(*positions: int) -> Shape:
    def shape(*args: Any) -> Any:
        made = tuple(torch.empty_like(args[p], memory_format=torch.contiguous_format) for p in positions)
        return made[0] if len(made) == 1 else made

    return shape


# ---- convolution


def _window_size(size: Any, kernel: int, stride: int, padding: int, dilation: int) -> Any:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _convolution_shape(x: Tensor, w: Tensor, _b: Any, stride: Any, padding: Any, dilation: Any, _groups: int) -> Tensor:
    spatial = [_window_size(x.shape[1 + i], w.shape[2 + i], stride[i], padding[i], dilation[i]) for i in (0, 1)]
    return x.new_empty((x.shape[0], *spatial, w.shape[0]))


def _convolution(x: Tensor, w: Tensor, b: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    return nhwc(F.conv2d(nchw(x), w, b, stride, padding, dilation, groups))


def _input_gradient(dy: Tensor, w: Tensor, size: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    shape = (dy.shape[0], w.shape[1] * groups, *size)
    return nhwc(torch.nn.grad.conv2d_input(shape, w, nchw(dy), stride, padding, dilation, groups))


def _weight_gradient(
    x: Tensor, dy: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    shape = (dy.shape[3], x.shape[3] // groups, *kernel)
    return torch.nn.grad.conv2d_weight(nchw(x), shape, nchw(dy), stride, padding, dilation, groups).contiguous()


define(f"convolution(Tensor x, Tensor w, Tensor? b, {_WINDOW}, int groups)", 1, _convolution_shape, _convolution)
define(
    f"convolution_input_gradient(Tensor dy, Tensor w, int[] size, {_WINDOW}, int groups)",
    1,
    lambda dy, w, size, _s, _p, _d, groups: dy.new_empty((dy.shape[0], *size, w.shape[1] * groups)),
    _input_gradient,
)
define(
    f"convolution_weight_gradient(Tensor x, Tensor dy, int[] kernel, {_WINDOW}, int groups)",
    1,
    lambda x, dy, kernel, _s, _p, _d, groups: x.new_empty((dy.shape[3], x.shape[3] // groups, *kernel)),
    _weight_gradient,
)

# ---- batch norm over the rows of [..., C]


def _batch_norm_shape(x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    channels = (x.shape[-1],)
    return torch.empty_like(x), x.new_empty(channels), x.new_empty(channels)


def _batch_norm(x: Tensor, w: Any, b: Any, addend: Any, eps: float, relu: bool) -> tuple[Tensor, Tensor, Tensor]:
    rows = x.reshape(-1, x.shape[-1])
    mean, rstd = rows.mean(0), (rows.var(0, correction=0) + eps).rsqrt()
    y = (x - mean) * rstd * (1.0 if w is None else w) + (0.0 if b is None else b)
    y = y if addend is None else y + addend
    return y.relu() if relu else y, mean, rstd


def _fixed_norm(
    x: Tensor, w: Any, b: Any, mean: Tensor, variance: Tensor, addend: Any, eps: float, relu: bool
) -> Tensor:
    y = (x - mean) * (variance + eps).rsqrt() * (1.0 if w is None else w) + (0.0 if b is None else b)
    y = y if addend is None else y + addend
    return y.relu() if relu else y


def _batch_norm_backward(
    dy: Tensor, x: Tensor, w: Any, mean: Tensor, rstd: Tensor, y: Any
) -> tuple[Tensor, Tensor, Tensor]:
    dy, x = dy if y is None else dy * (y > 0), x.float()
    rows, channels = x.numel() // x.shape[-1], x.shape[-1]
    scaled = (x - mean) * rstd
    db, dw = dy.reshape(-1, channels).sum(0), (dy * scaled).reshape(-1, channels).sum(0)
    dx = (dy - db / rows - scaled * dw / rows) * rstd * (1.0 if w is None else w)
    return dx, dw, db


define(
    "batch_norm(Tensor x, Tensor? w, Tensor? b, Tensor? addend, float eps, bool relu)",
    3,
    _batch_norm_shape,
    _batch_norm,
)
define(
    "fixed_norm(Tensor x, Tensor? w, Tensor? b, Tensor mean, Tensor variance, Tensor? addend, float eps, bool relu)",
    1,
    _like(0),
    _fixed_norm,
)
define(
    "batch_norm_backward(Tensor dy, Tensor x, Tensor? w, Tensor mean, Tensor rstd, Tensor? y)",
    3,
    lambda dy, *_: _batch_norm_shape(dy),
    _batch_norm_backward,
)
define("channel_sum(Tensor x)", 1, lambda x: x.new_empty((x.shape[-1],)), lambda x: x.reshape(-1, x.shape[-1]).sum(0))
define("row_sum(Tensor x)", 1, lambda x: x.new_empty(x.shape[:-1]), lambda x: x.sum(-1))
define("softmax(Tensor x)", 1, _like(0), lambda x: F.softmax(x, -1))
define("softmax_backward(Tensor dy, Tensor y)", 1, _like(0), lambda dy, y: y * (dy - (dy * y).sum(-1, keepdim=True)))
define("log_softmax(Tensor x)", 1, _like(0), lambda x: F.log_softmax(x, -1))


def _running_statistics(
    x: Tensor, mean: Tensor, rstd: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor]:
    rows = x.numel() // x.shape[-1]
    unbiased = (rstd.double() ** -2 - eps).float() * (rows / max(rows - 1, 1))
    return running_mean + momentum * (mean - running_mean), running_var + momentum * (unbiased - running_var)


define(
    "running_statistics(Tensor x, Tensor mean, Tensor rstd, Tensor running_mean, Tensor running_var, float momentum, "
    "float eps)",
    2,
    _like(1, 1),
    _running_statistics,
)

# ---- pooling


def _max_pool(x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, size: Any) -> Tensor:
    ceil = [_window_size(x.shape[1 + i], kernel[i], stride[i], padding[i], dilation[i]) != size[i] for i in (0, 1)]
    return nhwc(F.max_pool2d(nchw(x), kernel, stride, padding, dilation, ceil_mode=any(ceil)))


def _max_pool_backward(
    dy: Tensor, x: Tensor, y: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> Tensor:
    ceil = [
        _window_size(x.shape[1 + i], kernel[i], stride[i], padding[i], dilation[i]) != y.shape[1 + i] for i in (0, 1)
    ]
    _, indices = torch.ops.aten.max_pool2d_with_indices(nchw(x), kernel, stride, padding, dilation, any(ceil))
    return nhwc(
        torch.ops.aten.max_pool2d_with_indices_backward(
            nchw(dy), nchw(x), kernel, stride, padding, dilation, any(ceil), indices
        )
    )


ADAPTIVE = [0, 0]
"""A kernel of this size: the windows of ``torch.nn.AdaptiveAvgPool2d``, of neighbouring sizes where none divides."""


def _average_pool(
    x: Tensor, kernel: Any, stride: Any, padding: Any, size: Any, counts_padding: bool, divisor: int
) -> Tensor:
    if list(kernel) == ADAPTIVE:
        return nhwc(F.adaptive_avg_pool2d(nchw(x), size))
    ceil = [_window_size(x.shape[1 + i], kernel[i], stride[i], padding[i], 1) != size[i] for i in (0, 1)]
    return nhwc(F.avg_pool2d(nchw(x), kernel, stride, padding, any(ceil), counts_padding, divisor or None))


def _average_pool_backward(
    dy: Tensor, size: Any, kernel: Any, stride: Any, padding: Any, counts_padding: bool, divisor: int
) -> Tensor:
    x = dy.new_empty((dy.shape[0], dy.shape[3], *size))
    if list(kernel) == ADAPTIVE:
        return nhwc(torch.ops.aten._adaptive_avg_pool2d_backward(nchw(dy), x))
    ceil = [_window_size(size[i], kernel[i], stride[i], padding[i], 1) != dy.shape[1 + i] for i in (0, 1)]
    return nhwc(
        torch.ops.aten.avg_pool2d_backward(
            nchw(dy), x, kernel, stride, padding, any(ceil), counts_padding, divisor or None
        )
    )


define(
    f"max_pool(Tensor x, int[] kernel, {_WINDOW}, int[] size)",
    1,
    lambda x, _k, _s, _p, _d, size: x.new_empty((x.shape[0], *size, x.shape[3])),
    _max_pool,
)
define(f"max_pool_backward(Tensor dy, Tensor x, Tensor y, int[] kernel, {_WINDOW})", 1, _like(1), _max_pool_backward)
define(
    "average_pool(Tensor x, int[] kernel, int[] stride, int[] padding, int[] size, bool counts_padding, int divisor)",
    1,
    lambda x, _k, _s, _p, size, _c, _d: x.new_empty((x.shape[0], *size, x.shape[3])),
    _average_pool,
)
define(
    "average_pool_backward(Tensor dy, int[] size, int[] kernel, int[] stride, int[] padding, bool counts_padding, "
    "int divisor)",
    1,
    lambda dy, size, *_: dy.new_empty((dy.shape[0], *size, dy.shape[3])),
    _average_pool_backward,
)

# ---- elementwise, permutation, products

define("relu(Tensor x)", 1, _like(0), lambda x: x.relu())
define("relu_backward(Tensor dy, Tensor y)", 1, _like(0), lambda dy, y: dy * (y > 0))
define("add_relu_backward(Tensor a, Tensor b, Tensor y)", 1, _like(0), lambda a, b, y: (a + b) * (y > 0))
define("add(Tensor a, Tensor b, bool relu)", 1, _like(0), lambda a, b, relu: (a + b).relu() if relu else a + b)
define("multiply(Tensor a, Tensor b)", 1, _like(0), lambda a, b: a * b)
define("scale(Tensor x, float factor)", 1, _like(0), lambda x, factor: x * factor)
define("divide(Tensor x, SymInt divisor)", 1, _like(0), lambda x, divisor: x / divisor)
define(
    "permute(Tensor x, int[] order)",
    1,
    lambda x, order: x.new_empty([x.shape[i] for i in order]),
    lambda x, order: x.permute(order).contiguous(),
)


def _product_shape(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    groups = a.shape[:-2]
    return a.new_empty((*groups, a.shape[-1 if transpose_a else -2], b.shape[-2 if transpose_b else -1]))


def _product(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    return (a.mT if transpose_a else a) @ (b.mT if transpose_b else b)


define("matrix_product(Tensor a, Tensor b, bool transpose_a, bool transpose_b)", 1, _product_shape, _product)
define(
    "linear(Tensor x, Tensor w, Tensor? b)",
    1,
    lambda x, w, _b: x.new_empty((x.shape[0], w.shape[0])),
    lambda x, w, b: F.linear(x, w, b),
)

# ---- recurrent layers: the traced layer operations under the native names

define(
    "lstm(Tensor x, Tensor w_ih, Tensor w_hh, Tensor? bias)",
    7,
    lambda x, _i, w_hh, _b: tuple(x.new_empty((x.shape[0], x.shape[1], w_hh.shape[1])) for _ in range(7)),
    None,
)
define(
    "lstm_backward(Tensor dy, Tensor? dcells, Tensor cells, Tensor i, Tensor f, Tensor g, Tensor o, Tensor tanh_cells, "
    "Tensor w_hh)",
    1,
    lambda dy, *_: dy.new_empty((*dy.shape[:2], 4 * dy.shape[2])),
    None,
)


def _embedding_backward(dy: Tensor, indices: Tensor, rows: int, padding: int) -> Tensor:
    return torch.ops.aten.embedding_dense_backward(dy, indices, rows, padding, False)


define(
    "embedding_backward(Tensor dy, Tensor indices, int rows, int padding)",
    1,
    lambda dy, _i, rows, _p: dy.new_empty((rows, dy.shape[-1])),
    _embedding_backward,
)

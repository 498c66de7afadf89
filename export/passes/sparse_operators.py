"""The operators of the native ``sparse_layers.cpp`` as torch sees them: weights that are their kept values alone.

values [capacity] and their places in the whole weights [O, ...], C order: row o has starts[o] .. starts[o + 1] - 1,
each with its column. Gradients of the values are 0 beyond the last place. Stride 1, one group.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from export.passes.operators import define, nchw, nhwc

_PLACES = "Tensor starts, Tensor columns"
_WINDOW = "int[] kernel, int[] padding, int[] dilation"


def _rows(starts: Tensor) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(starts) - 1), starts.diff().long())


def whole_weights(values: Tensor, starts: Tensor, columns: Tensor, width: int) -> Tensor:
    """The dense [O, width] that the values stand for."""
    used = int(starts[-1])
    dense = values.new_zeros(len(starts) - 1, width)
    dense[_rows(starts), columns[:used].long()] = values[:used]
    return dense


def _sampled(dense: Tensor, starts: Tensor, columns: Tensor) -> Tensor:
    result = dense.new_zeros(len(columns))
    used = int(starts[-1])
    result[:used] = dense[_rows(starts), columns[:used].long()]
    return result


def _filters(values: Tensor, starts: Tensor, columns: Tensor, channels: int, kernel: Any) -> Tensor:
    dense = whole_weights(values, starts, columns, channels * kernel[0] * kernel[1])
    return dense.reshape(-1, channels, *kernel)


def _spatial(x: Tensor, kernel: Any, padding: Any, dilation: Any) -> list[Any]:
    return [x.shape[1 + i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) for i in (0, 1)]


define(
    f"sparse_linear(Tensor x, Tensor values, {_PLACES}, Tensor? b)",
    1,
    lambda x, _v, starts, _c, _b: x.new_empty((x.shape[0], starts.shape[0] - 1)),
    lambda x, v, starts, columns, b: F.linear(x, whole_weights(v, starts, columns, x.shape[1]), b),
)
define(
    f"sparse_linear_input_gradient(Tensor dy, Tensor values, {_PLACES}, int inputs)",
    1,
    lambda dy, _v, _s, _c, inputs: dy.new_empty((dy.shape[0], inputs)),
    lambda dy, v, starts, columns, inputs: dy @ whole_weights(v, starts, columns, inputs),
)
define(
    f"sparse_linear_weight_gradient(Tensor dy, Tensor x, {_PLACES})",
    1,
    lambda dy, _x, _s, columns: dy.new_empty(columns.shape),
    lambda dy, x, starts, columns: _sampled(dy.t() @ x, starts, columns),
)
define(
    f"sparse_convolution(Tensor x, Tensor values, {_PLACES}, Tensor? b, {_WINDOW})",
    1,
    lambda x, _v, starts, _c, _b, kernel, padding, dilation: x.new_empty(
        (x.shape[0], *_spatial(x, kernel, padding, dilation), starts.shape[0] - 1)
    ),
    lambda x, v, starts, columns, b, kernel, padding, dilation: nhwc(
        F.conv2d(nchw(x), _filters(v, starts, columns, x.shape[3], kernel), b, 1, padding, dilation)
    ),
)
define(
    f"sparse_convolution_input_gradient(Tensor dy, Tensor values, {_PLACES}, int[] size, {_WINDOW})",
    1,
    lambda dy, _v, _s, _c, size, _k, _p, _d: dy.new_empty((dy.shape[0], *size)),
    lambda dy, v, starts, columns, size, kernel, padding, dilation: nhwc(
        torch.nn.grad.conv2d_input(
            (dy.shape[0], size[2], *size[:2]),
            _filters(v, starts, columns, size[2], kernel),
            nchw(dy),
            1,
            padding,
            dilation,
        )
    ),
)
define(
    f"sparse_convolution_weight_gradient(Tensor x, Tensor dy, {_PLACES}, {_WINDOW})",
    1,
    lambda x, _dy, _s, columns, _k, _p, _d: x.new_empty(columns.shape),
    lambda x, dy, starts, columns, kernel, padding, dilation: _sampled(
        torch.nn.grad.conv2d_weight(
            nchw(x), (dy.shape[3], x.shape[3], *kernel), nchw(dy), 1, padding, dilation
        ).reshape(dy.shape[3], -1),
        starts,
        columns,
    ),
)

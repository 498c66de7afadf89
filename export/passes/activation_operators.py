"""The native activations but ReLU, each with its gradient, as torch sees them: names, shapes, plain meanings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from export.passes.operators import define


def _like_first(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


define("gelu(Tensor x)", 1, _like_first, lambda x: F.gelu(x))
define("gelu_backward(Tensor dy, Tensor x)", 1, _like_first, lambda dy, x: torch.ops.aten.gelu_backward(dy, x))
define("hardswish(Tensor x)", 1, _like_first, lambda x: F.hardswish(x))
define(
    "hardswish_backward(Tensor dy, Tensor x)",
    1,
    _like_first,
    lambda dy, x: torch.where(x <= -3, 0.0, torch.where(x < 3, dy * (x / 3 + 0.5), dy)),
)
define("hardsigmoid(Tensor x)", 1, _like_first, lambda x: F.hardsigmoid(x))
define(
    "hardsigmoid_backward(Tensor dy, Tensor x)",
    1,
    _like_first,
    lambda dy, x: torch.where((x > -3) & (x < 3), dy / 6, 0.0),
)
define("hardtanh(Tensor x, float low, float high)", 1, _like_first, lambda x, low, high: x.clamp(low, high))
define(
    "hardtanh_backward(Tensor dy, Tensor x, float low, float high)",
    1,
    _like_first,
    lambda dy, x, low, high: torch.where((x <= low) | (x >= high), 0.0, dy),
)
define("leaky_relu(Tensor x, float slope)", 1, _like_first, lambda x, slope: F.leaky_relu(x, slope))
define(
    "leaky_relu_backward(Tensor dy, Tensor x, float slope)",
    1,
    _like_first,
    lambda dy, x, slope: torch.where(x > 0, dy, dy * slope),
)
define("prelu(Tensor x, Tensor slopes)", 1, _like_first, lambda x, slopes: torch.where(x > 0, x, x * slopes))
define(
    "prelu_backward(Tensor dy, Tensor x, Tensor slopes)",
    2,
    lambda dy, x, _slopes: (_like_first(dy), _like_first(x)),
    lambda dy, x, slopes: (torch.where(x > 0, dy, dy * slopes), torch.where(x > 0, 0.0, dy * x)),
)
define("sigmoid(Tensor x)", 1, _like_first, lambda x: x.sigmoid())
define("sigmoid_backward(Tensor dy, Tensor y)", 1, _like_first, lambda dy, y: dy * y * (1 - y))
define("tanh(Tensor x)", 1, _like_first, lambda x: x.tanh())
define("tanh_backward(Tensor dy, Tensor y)", 1, _like_first, lambda dy, y: dy * (1 - y * y))
define("silu(Tensor x)", 1, _like_first, lambda x: F.silu(x))
define("silu_backward(Tensor dy, Tensor x)", 1, _like_first, lambda dy, x: torch.ops.aten.silu_backward(dy, x))
define(
    "elu(Tensor x, float alpha, float scale, float inner)",
    1,
    _like_first,
    lambda x, alpha, scale, inner: torch.ops.aten.elu(x, alpha, scale, inner),
)
define(
    "elu_backward(Tensor dy, Tensor x, float alpha, float scale, float inner)",
    1,
    _like_first,
    lambda dy, x, alpha, scale, inner: torch.ops.aten.elu_backward(dy, alpha, scale, inner, False, x),
)
define(
    "softplus(Tensor x, float beta, float threshold)",
    1,
    _like_first,
    lambda x, beta, threshold: F.softplus(x, beta, threshold),
)
define(
    "softplus_backward(Tensor dy, Tensor x, float beta, float threshold)",
    1,
    _like_first,
    lambda dy, x, beta, threshold: torch.ops.aten.softplus_backward(dy, x, beta, threshold),
)
define("mish(Tensor x)", 1, _like_first, lambda x: F.mish(x))
define("mish_backward(Tensor dy, Tensor x)", 1, _like_first, lambda dy, x: torch.ops.aten.mish_backward(dy, x))
define("gelu_tanh(Tensor x)", 1, _like_first, lambda x: F.gelu(x, approximate="tanh"))
define(
    "gelu_tanh_backward(Tensor dy, Tensor x)",
    1,
    _like_first,
    lambda dy, x: torch.ops.aten.gelu_backward(dy, x, approximate="tanh"),
)

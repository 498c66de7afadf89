"""Operators that ONNX Runtime Training differentiates, in place of those of the plain step graph that it does not.

Everything not named here is translated as for stock ONNX Runtime.
"""

from __future__ import annotations

import math
import operator
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from export.capture import Capture, layer_of
from export.formats.onnx_step import operator_table  # noqa: F401  (registers the plain operators)
from export.formats.onnx_step.graph import ABSENT
from export.formats.onnx_step.operators.normalization import _affine, _count, _inverse_deviation, _per_channel
from export.formats.onnx_step.operators.pooling import _apply, _averaging, _pairs
from export.formats.onnx_step.translation import OPERATORS, Operator, Translation, Values, translates_into

_OVERLAY: dict[str, Operator] = {}
"""Operators of this format alone."""

translates = translates_into(_OVERLAY)


class ForwardTranslation(Translation):
    """One forward pass on its way to ONNX.

    Attributes:
        silent_rows: (parameter, row) of embedding rows that get no gradient, ``padding_idx``.
    """

    operators: Mapping[str, Operator] = ChainMap(_OVERLAY, OPERATORS)

    def __init__(self, program: Capture) -> None:
        super().__init__(program)
        self.silent_rows: dict[str, int] = {}


@translates("_native_batch_norm_legit_functional")
def batch_norm(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    weight: Any,
    bias: Any,
    running_mean: fx.Node,
    running_var: fx.Node,
    training: bool,
    momentum: float,
    epsilon: float,
) -> tuple[str, ...]:
    """Running statistics move in the graph: the runtime's never reach the parameters, and its variance is biased."""
    if not training:
        return _static(t, x, weight, bias, running_mean, running_var, epsilon)
    y, mean, variance = _trained(t, x, weight, bias, epsilon)
    count = _count(t, x)
    unbiased = t.make.node("Mul", variance, t.make.node("Div", count, t.make.node("Sub", count, 1.0)))
    moved = [
        t.make.node("Add", t.make.node("Mul", t.value(old), 1.0 - momentum), t.make.node("Mul", new, float(momentum)))
        for old, new in ((running_mean, mean), (running_var, unbiased))
    ]
    return y, mean, _inverse_deviation(t, variance, epsilon), moved[0], moved[1]


@translates("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    t: Translation, node: fx.Node, x: fx.Node, weight: Any, bias: Any, training: bool, momentum: float, epsilon: float
) -> tuple[str, ...]:
    y, mean, variance = _trained(t, x, weight, bias, epsilon)
    return y, mean, _inverse_deviation(t, variance, epsilon)


@translates("_native_batch_norm_legit_no_training")
def batch_norm_in_evaluation(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    weight: Any,
    bias: Any,
    running_mean: fx.Node,
    running_var: fx.Node,
    momentum: float,
    epsilon: float,
) -> tuple[str, ...]:
    return _static(t, x, weight, bias, running_mean, running_var, epsilon)[:3]


def _trained(t: Translation, x: fx.Node, weight: Any, bias: Any, epsilon: float) -> tuple[str, str, str]:
    """y, and the batch's own mean and biased variance [C]: with momentum 0 the moved statistics are the batch's.

    The kernel writes them over the statistics it is given, so those are fresh zeros of this layer's own. Constants
    will not do: layers of one width share them, and each would get the statistics of the last (measured).
    """
    corner = [0, *range(2, t.tensor(x).dim())]
    first = t.make.node("Slice", t.value(x), [0] * len(corner), [1] * len(corner), corner)
    zeros = [t.make.node("Sub", source, source) for source in _distinct(t, t.make.node("Reshape", first, [-1]))]
    # A constant in the place of a parameter would get a gradient, and two layers that share it two of one name.
    scale = t.value(weight) if weight is not None else t.make.node("Add", zeros[0], 1.0)
    shift = t.value(bias) if bias is not None else t.make.node("Sub", scale, scale)
    y, mean, variance = t.make.node_with_outputs(
        "BatchNormalization",
        3,
        t.value(x),
        scale,
        shift,
        *zeros,
        training_mode=1,
        momentum=0.0,
        epsilon=float(epsilon),
    )
    return y, mean, variance


def _distinct(t: Translation, value: str) -> tuple[str, str]:
    """Two values of one shape that no pass over the graph takes for one."""
    return value, t.make.node("Neg", value)


def _static(
    t: Translation, x: fx.Node, weight: Any, bias: Any, running_mean: fx.Node, running_var: fx.Node, epsilon: float
) -> tuple[str, ...]:
    """An affine map: the runtime has no gradient for batch norm with given statistics."""
    scale, shift = _affine(t, x, weight, bias)
    mean, variance = t.value(running_mean), t.value(running_var)
    inverse = _inverse_deviation(t, variance, epsilon)
    slope = t.make.node("Mul", scale, inverse)
    offset = t.make.node("Sub", shift, t.make.node("Mul", mean, slope))
    scaled = t.make.node("Mul", t.value(x), _per_channel(t, x, slope))
    return t.make.node("Add", scaled, _per_channel(t, x, offset)), mean, inverse, mean, variance


@translates("native_layer_norm")
def layer_norm(
    t: Translation, node: fx.Node, x: fx.Node, sizes: Sequence[int], weight: Any, bias: Any, epsilon: float
) -> tuple[str, ...]:
    """The runtime's own where it has both parameters, without which its gradient cannot be built; else written out."""
    if weight is not None and bias is not None:
        operands = [t.value(v) for v in (x, weight, bias)]
        return t.make.node_with_outputs("LayerNormalization", 3, *operands, axis=-len(sizes), epsilon=float(epsilon))
    axes = list(range(-len(sizes), 0))
    mean = t.make.node("ReduceMean", t.value(x), axes, keepdims=1)
    centred = t.make.node("Sub", t.value(x), mean)
    variance = t.make.node("ReduceMean", t.make.node("Mul", centred, centred), axes, keepdims=1)
    inverse = _inverse_deviation(t, variance, epsilon)
    y = t.make.node("Mul", centred, inverse)
    return y if weight is None else t.make.node("Mul", y, t.value(weight)), mean, inverse


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
    """Products with averaging matrices: the gradient of AveragePool ends the process (a division by 0, measured)."""
    kernel, stride, padding = _pairs(kernel, stride or kernel, padding)
    return _apply(t, t.value(x), _averaging(t, x, node, kernel, stride, padding, count_include_pad, divisor))


@translates("gelu")
def gelu(t: Translation, node: fx.Node, a: fx.Node, *, approximate: str = "none") -> str:
    """The tanh form is written out: Gelu's gradient is that of the exact form whatever it says (measured)."""
    x = t.value(a)
    if approximate == "none":
        return t.make.node("Gelu", x, approximate=approximate)
    cube = t.make.node("Mul", t.make.node("Mul", x, x), x)
    inner = t.make.node("Add", x, t.make.node("Mul", cube, 0.044715))
    bell = t.make.node("Tanh", t.make.node("Mul", inner, math.sqrt(2.0 / math.pi)))
    return t.make.node("Mul", t.make.node("Mul", x, 0.5), t.make.node("Add", bell, 1.0))


@translates("softplus")
def softplus(t: Translation, node: fx.Node, a: fx.Node, beta: float = 1, threshold: float = 20) -> str:
    """max(z, 0) + log(1 + e^-|z|), over beta; there is no gradient of Softplus. The threshold changes no float32."""
    z = t.value(a) if beta == 1 else t.make.node("Mul", t.value(a), float(beta))
    decay = t.make.node("Exp", t.make.node("Neg", t.make.node("Abs", z)))
    smooth = t.make.node("Add", t.make.node("Relu", z), t.make.node("Log", t.make.node("Add", decay, 1.0)))
    return smooth if beta == 1 else t.make.node("Mul", smooth, 1.0 / beta)


@translates("hardsigmoid")
def hardsigmoid(t: Translation, node: fx.Node, a: fx.Node) -> str:
    return _hard_sigmoid(t, a)


@translates("hardswish")
def hardswish(t: Translation, node: fx.Node, a: fx.Node) -> str:
    return t.make.node("Mul", t.value(a), _hard_sigmoid(t, a))


def _hard_sigmoid(t: Translation, a: fx.Node) -> str:
    line = t.make.node("Add", t.make.node("Mul", t.value(a), 1.0 / 6.0), 0.5)
    return t.make.node("Clip", line, t.scalar(0.0), t.scalar(1.0))


@translates("expm1")
def expm1(t: Translation, node: fx.Node, a: fx.Node) -> str:
    # The plain table's form that is exact near 0 divides by 0 far from it, which only its gradient would notice.
    return t.make.node("Sub", t.make.node("Exp", t.value(a)), 1.0)


@translates("embedding")
def embedding(
    t: ForwardTranslation, node: fx.Node, table: fx.Node, index: fx.Node, padding_index: int = -1, *_: Any
) -> str:
    if padding_index >= 0:
        name = t.value(table)
        if table.op != "placeholder" or len(table.users) > 1:
            raise t.refuse(node, "an embedding with padding_idx whose table is used elsewhere", "no padding_idx")
        t.silent_rows[name] = padding_index
    return t.make.node("Gather", t.value(table), t.value(index))


@translates("split", "split_with_sizes", "chunk", "unsafe_split_with_sizes")
def split(t: Translation, node: fx.Node, a: fx.Node, sizes: Any, dim: int = 0) -> Values:
    """Slices where a part is not used: the gradient of Split joins the parts that have one and no zeros (measured)."""
    parts, used = node.meta["val"], _used_parts(node)
    if len(used) == len(parts):
        return OPERATORS["split"](t, node, a, sizes, dim)
    widths = [t.dims.fixed(part.shape[dim], layer=layer_of(node)) for part in parts]
    ends = [sum(widths[: i + 1]) for i in range(len(widths))]
    return tuple(
        t.make.node("Slice", t.value(a), [end - width], [end], [dim]) if i in used else ""
        for i, (end, width) in enumerate(zip(ends, widths, strict=True))
    )


@translates("unbind")
def unbind(t: Translation, node: fx.Node, a: fx.Node, dim: int = 0) -> Values:
    """As :func:`split`."""
    count, used = len(node.meta["val"]), _used_parts(node)
    if len(used) == count:
        return OPERATORS["unbind"](t, node, a, dim)
    return tuple(
        t.make.node("Gather", t.value(a), t.value(i, torch.int64), axis=dim) if i in used else "" for i in range(count)
    )


def _used_parts(node: fx.Node) -> set[Any]:
    """Positions of the outputs that something reads."""
    return {user.args[1] for user in node.users if user.target is operator.getitem and user.users}


@translates("apportion.lstm_layer")
def lstm_layer(
    t: Translation, node: fx.Node, x: fx.Node, w_ih: fx.Node, w_hh: fx.Node, bias: fx.Node | None
) -> tuple[str, ...]:
    """The runtime's own LSTM: gates in the order i, o, f, c; only the sequence of outputs is given."""
    if _used_parts(node) - {0}:
        raise t.refuse(node, "an LSTM whose cell state is read", "its outputs only")
    make, hidden = t.make.node, t.fixed_shape(w_hh)[0]
    operands = [t.value(x), *(make("Unsqueeze", _onnx_order(t, t.value(w), hidden), [0]) for w in (w_ih, w_hh))]
    if bias is not None:
        # A second bias of zeros. Joining one as a constant fails: the builder names a gradient for it, in every layer.
        both = make("Pad", _onnx_order(t, t.value(bias), hidden), [0, 4 * hidden])
        operands.append(make("Unsqueeze", both, [0]))
    else:
        operands.append(ABSENT)
    # The gradient builder takes the inputs it reads by position and fails where trailing ones are left out.
    operands += [ABSENT, _zero_state(t, x, hidden), _zero_state(t, x, hidden)]
    y = t.make.node_with_outputs("LSTM", 3, *operands, hidden_size=hidden)[0]
    return make("Squeeze", y, [1]), "", "", "", "", "", ""


def _zero_state(t: Translation, x_TBI: fx.Node, hidden: int) -> str:
    """Zeros [1, B, H]."""
    batch = t.make.node("Shape", t.value(x_TBI), start=1, end=2)
    return t.make.node("Expand", t.scalar(0.0), t.make.node("Concat", [1], batch, [hidden], axis=0))


def _onnx_order(t: Translation, value: str, hidden: int) -> str:
    """Rows i, f, g, o of a weight or bias in ONNX's order i, o, f, g."""
    first, middle, last = t.make.node_with_outputs("Split", 3, value, [hidden, 2 * hidden, hidden], axis=0)
    return t.make.node("Concat", first, last, middle, axis=0)

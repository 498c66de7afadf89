"""Batch norm, layer norm and group norm; the backward passes of the last two arrive written out.

Training-mode batch norm is ONNX Runtime's own, which takes the mean, then the mean of squared differences (the one-pass
form cancels). Measured on x86-64 with releases 1.20 and 1.32: the same bits of both as written out, in half of the time
and without two copies of x. The backward pass uses the inference operator as a per-channel affine map.

Legend: N batch, C channels, M elements per channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto
from torch import fx

from export.formats.onnx_step.translation import Translation, product, translates


def _axes(t: Translation, x: fx.Node) -> list[int]:
    return [d for d in range(t.tensor(x).dim()) if d != 1]


def _count(t: Translation, x: fx.Node) -> str:
    """M as a float32 scalar: it depends on the batch."""
    spatial = product(t.fixed_shape(x, 2))
    batch = t.make.node("Cast", t.dims.vector(t.dims.size(t.tensor(x).shape[0])), to=TensorProto.FLOAT)
    scalar = t.make.node("Squeeze", batch, [0])
    return scalar if spatial == 1 else t.make.node("Mul", scalar, float(spatial))


def _per_channel(t: Translation, x: fx.Node, vector: str) -> str:
    """[C] as [1, C, 1, ...], to broadcast against x."""
    return t.make.node("Reshape", vector, [1, -1] + [1] * (t.tensor(x).dim() - 2))


def _inverse_deviation(t: Translation, variance: str, epsilon: float) -> str:
    return t.make.node("Reciprocal", t.make.node("Sqrt", t.make.node("Add", variance, float(epsilon))))


def _affine(t: Translation, x: fx.Node, weight: Any, bias: Any) -> tuple[str, str]:
    channels = t.fixed_shape(x, 1)[0]
    scale = t.value(weight) if weight is not None else t.make.constant(np.ones(channels, np.float32))
    return scale, t.value(bias) if bias is not None else t.make.constant(np.zeros(channels, np.float32))


def _normalized(t: Translation, x: fx.Node, weight: Any, bias: Any, mean: str, variance: str, epsilon: float) -> str:
    scale, shift = _affine(t, x, weight, bias)
    return t.make.node("BatchNormalization", t.value(x), scale, shift, mean, variance, epsilon=float(epsilon))


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
    if not training:
        mean, variance = t.value(running_mean), t.value(running_var)
        y = _normalized(t, x, weight, bias, mean, variance, epsilon)
        return y, mean, _inverse_deviation(t, variance, epsilon), mean, variance
    y, mean, inverse, variance = _trained(t, x, weight, bias, epsilon)
    count = _count(t, x)
    unbiased = t.make.node("Mul", variance, t.make.node("Div", count, t.make.node("Sub", count, 1.0)))
    moved = [
        new
        if momentum == 1.0
        else t.make.node(
            "Add", t.make.node("Mul", t.value(old), 1.0 - momentum), t.make.node("Mul", new, float(momentum))
        )
        for old, new in ((running_mean, mean), (running_var, unbiased))
    ]
    return y, mean, inverse, moved[0], moved[1]


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
    mean, variance = t.value(running_mean), t.value(running_var)
    return _normalized(t, x, weight, bias, mean, variance, epsilon), mean, _inverse_deviation(t, variance, epsilon)


@translates("_native_batch_norm_legit.no_stats")
def batch_norm_without_statistics(
    t: Translation, node: fx.Node, x: fx.Node, weight: Any, bias: Any, training: bool, momentum: float, epsilon: float
) -> tuple[str, ...]:
    return _trained(t, x, weight, bias, epsilon)[:3]


def _trained(t: Translation, x: fx.Node, weight: Any, bias: Any, epsilon: float) -> tuple[str, str, str, str]:
    scale, shift = _affine(t, x, weight, bias)
    given = {"epsilon": float(epsilon), "momentum": 0.0, "training_mode": 1}
    operands = (t.value(x), scale, shift, *_places(t, x, scale, shift))
    y, mean, variance = t.make.node_with_outputs("BatchNormalization", 3, *operands, **given)
    return y, mean, _inverse_deviation(t, variance, epsilon), variance


def _places(t: Translation, x: fx.Node, scale: str, shift: str) -> tuple[str, str]:
    """Zeros [C] that the runtime writes the batch's mean and variance over, without a look at who else reads them.

    So no two norms may share theirs, and none may be a constant: what is left there, from a step that overflowed say,
    would be there in the next one. Products with x and the norm's own two vectors belong to that norm alone.
    """
    rank, channels = t.tensor(x).dim(), t.fixed_shape(x, 1)[0]
    entry = t.make.node("Slice", t.value(x), [0] * rank, [1, channels] + [1] * (rank - 2))
    zeros = t.make.node("Mul", t.make.node("Reshape", entry, [channels]), 0.0)
    return t.make.node("Mul", zeros, scale), t.make.node("Mul", zeros, shift)


@translates("native_batch_norm_backward")
def batch_norm_backward(
    t: Translation,
    node: fx.Node,
    dy: fx.Node,
    x: fx.Node,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    saved_mean: Any,
    saved_inverse: Any,
    training: bool,
    epsilon: float,
    wanted: Sequence[bool],
) -> tuple[str, ...]:
    """dx = A dy + B (x - mean) + D with A = weight/std, B = -A/std * dweight/M, D = -A * sum(dy)/M."""
    mean, inverse = (
        (t.value(saved_mean), t.value(saved_inverse))
        if training
        else (t.value(running_mean), _inverse_deviation(t, t.value(running_var), epsilon))
    )
    channels, axes = t.fixed_shape(x, 1)[0], _axes(t, x)
    scale, _ = _affine(t, x, weight, None)
    slope = t.make.node("Mul", scale, inverse)
    straight = t.make.node("Mul", t.value(dy), _per_channel(t, x, slope))
    sum_dy = t.make.node("ReduceSum", t.value(dy), axes, keepdims=0)
    sum_dyx = t.make.node("ReduceSum", t.make.node("Mul", t.value(dy), t.value(x)), axes, keepdims=0)
    dweight = t.make.node("Mul", t.make.node("Sub", sum_dyx, t.make.node("Mul", mean, sum_dy)), inverse)
    if not training:
        return straight, dweight, sum_dy
    share = t.make.node("Reciprocal", _count(t, x))
    tilt = t.make.node(
        "Neg", t.make.node("Mul", t.make.node("Mul", slope, inverse), t.make.node("Mul", dweight, share))
    )
    shift = t.make.node("Neg", t.make.node("Mul", slope, t.make.node("Mul", sum_dy, share)))
    ones = np.ones(channels, np.float32)
    correction = t.make.node("BatchNormalization", t.value(x), tilt, shift, mean, ones, epsilon=0.0)
    return t.make.node("Add", straight, correction), dweight, sum_dy


@translates("native_layer_norm")
def layer_norm(
    t: Translation, node: fx.Node, x: fx.Node, sizes: Sequence[int], weight: Any, bias: Any, epsilon: float
) -> tuple[str, ...]:
    scale = t.value(weight) if weight is not None else t.make.constant(np.ones(list(sizes), np.float32))
    operands = [t.value(x), scale] + ([t.value(bias)] if bias is not None else [])
    return t.make.node_with_outputs("LayerNormalization", 3, *operands, axis=-len(sizes), epsilon=float(epsilon))


@translates("native_group_norm")
def group_norm(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    weight: Any,
    bias: Any,
    batch: Any,
    channels: int,
    positions: int,
    groups: int,
    epsilon: float,
) -> tuple[str, ...]:
    grouped = t.make.node("Reshape", t.value(x), [0, groups, -1])
    mean = t.make.node("ReduceMean", grouped, [2], keepdims=1)
    centred = t.make.node("Sub", grouped, mean)
    variance = t.make.node("ReduceMean", t.make.node("Mul", centred, centred), [2], keepdims=1)
    inverse = _inverse_deviation(t, variance, epsilon)
    y = t.make.node("Reshape", t.make.node("Mul", centred, inverse), t.dims.shape(t.tensor(x).shape))
    if weight is not None:
        y = t.make.node("Mul", y, _per_channel(t, x, t.value(weight)))
    if bias is not None:
        y = t.make.node("Add", y, _per_channel(t, x, t.value(bias)))
    return y, t.make.node("Squeeze", mean, [2]), t.make.node("Squeeze", inverse, [2])

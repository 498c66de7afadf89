"""Activations and their gradients, in ONNX Runtime's quick operators.

Where takes as long as 60 multiplications there if its condition is as good as random, PRelu as 40, Softplus as 80, Elu
as 13. Measured on x86-64, ONNX Runtime 1.32, 32 x 32 x 32 x 32 values.
"""

from __future__ import annotations

import math
import operator

import torch
from torch import fx

from export.formats.onnx_step.graph import ABSENT
from export.formats.onnx_step.operators.pooling import unpooled
from export.formats.onnx_step.translation import Translation, translates

ATEN = torch.ops.aten

WHOLE = frozenset({
    ATEN.leaky_relu.default, ATEN.leaky_relu_backward.default, ATEN._prelu_kernel.default,
    ATEN._prelu_kernel_backward.default, ATEN.elu.default, ATEN.celu.default, ATEN.elu_backward.default,
    ATEN.mish.default, ATEN.mish_backward.default,
})  # fmt: skip
"""What is not to be written out in simpler operations before it comes here."""

_STEEP = 3.0e38
"""Slope that turns HardSigmoid into the step function: 0 at and below 0, 1 from 1e-38 on."""

_POWER, _MOST = 2.0**100, 2.0**27
"""A steep slope whose products with bounds up to the second number are exact and finite."""

_STRAIGHT = 20.0
"""From here on a softplus is its argument and a mish too, in float32."""


@translates("gelu")
def gelu(t: Translation, node: fx.Node, a: fx.Node, *, approximate: str = "none") -> str:
    return t.make.node("Gelu", t.value(a), approximate=approximate)


@translates("gelu_backward")
def gelu_backward(t: Translation, node: fx.Node, dy: fx.Node, a: fx.Node, *, approximate: str = "none") -> str:
    """dy times the slope: Phi(a) + a phi(a), or that of 0.5 a (1 + tanh(k (a + c a^3))).

    Source: Hendrycks and Gimpel, "Gaussian error linear units" (2016), section 2.
    """
    x = t.value(a)
    make = t.make.node
    square = make("Mul", x, x)
    if approximate == "none":
        rises = make("Mul", make("Add", make("Erf", make("Mul", x, math.sqrt(0.5))), 1.0), 0.5)
        density = make("Mul", make("Exp", make("Mul", square, -0.5)), 1.0 / math.sqrt(2.0 * math.pi))
        slope = make("Add", rises, make("Mul", x, density))
    else:
        k, c = math.sqrt(2.0 / math.pi), 0.044715
        bend = make("Tanh", make("Mul", make("Mul", x, make("Add", make("Mul", square, c), 1.0)), k))
        rises = make("Mul", make("Add", bend, 1.0), 0.5)
        falls = make("Sub", 1.0, make("Mul", bend, bend))
        steep = make("Mul", make("Add", make("Mul", square, 3.0 * c), 1.0), 0.5 * k)
        slope = make("Add", rises, make("Mul", make("Mul", x, falls), steep))
    return make("Mul", t.value(dy), slope)


@translates("silu")
def silu(t: Translation, node: fx.Node, a: fx.Node) -> str:
    return t.make.node("Mul", t.value(a), t.make.node("Sigmoid", t.value(a)))


@translates("hardsigmoid")
def hardsigmoid(t: Translation, node: fx.Node, a: fx.Node) -> str:
    return t.make.node("HardSigmoid", t.value(a), alpha=1.0 / 6.0, beta=0.5)


@translates("leaky_relu")
def leaky_relu(t: Translation, node: fx.Node, a: fx.Node, slope: float = 0.01) -> str:
    return t.make.node("LeakyRelu", t.value(a), alpha=float(slope))


@translates("leaky_relu_backward")
def leaky_relu_backward(t: Translation, node: fx.Node, dy: fx.Node, a: fx.Node, slope: float, _: bool) -> str:
    return t.make.node("Mul", t.value(dy), _either(t, _positive(t, t.value(a)), 1.0, slope))


@translates("_prelu_kernel")
def prelu(t: Translation, node: fx.Node, a: fx.Node, slopes: fx.Node) -> str:
    """Not PRelu, which is slower."""
    make, x = t.make.node, t.value(a)
    return make("Add", make("Relu", x), make("Mul", make("Clip", x, ABSENT, 0.0), t.value(slopes)))


@translates("_prelu_kernel_backward")
def prelu_backward(t: Translation, node: fx.Node, dy: fx.Node, a: fx.Node, slopes: fx.Node) -> tuple[str, str]:
    """The input's gradient, and of each value what it gives to its slope's."""
    make, x = t.make.node, t.value(a)
    above = make("Mul", t.value(dy), _positive(t, x))
    below = make("Sub", t.value(dy), above)
    return make("Add", above, make("Mul", below, t.value(slopes))), make("Mul", below, x)


@translates("elu")
def elu(t: Translation, node: fx.Node, a: fx.Node, alpha: float = 1, scale: float = 1, inner: float = 1) -> str:
    return _elu(t, t.value(a), alpha, scale, inner)


@translates("celu")
def celu(t: Translation, node: fx.Node, a: fx.Node, alpha: float = 1) -> str:
    return _elu(t, t.value(a), alpha, 1.0, 1.0 / alpha)


def _elu(t: Translation, x: str, alpha: float, scale: float, inner: float) -> str:
    """e^v - 1 of a negative v is 2 h / (1 - h), h = tanh(v / 2), which loses no digits near 0."""
    make = t.make.node
    half = make("Tanh", make("Mul", make("Clip", x, ABSENT, 0.0), 0.5 * inner))
    below = make("Mul", make("Div", half, make("Sub", 1.0, half)), 2.0 * alpha * scale)
    above = make("Relu", x)
    return make("Add", above if scale == 1 else make("Mul", above, float(scale)), below)


@translates("elu_backward")
def elu_backward(
    t: Translation, node: fx.Node, dy: fx.Node, alpha: float, scale: float, inner: float, is_result: bool, a: fx.Node
) -> str:
    """From the argument, or from the result, which an activation in place leaves."""
    make, x = t.make.node, t.value(a)
    below = make("Min", x, 0.0)  # not Clip: the forward pass has made that, and would keep it until here
    steep, flat = float(scale), scale * alpha * inner
    if is_result:
        slope = make("Add", below if inner == 1 else make("Mul", below, float(inner)), flat)
    else:
        slope = make("Exp", below if inner == 1 else make("Mul", below, float(inner)))
        slope = slope if flat == 1 else make("Mul", slope, flat)
    if flat != steep:  # what it is at 0 is the slope below it
        slope = make("Add", slope, make("Mul", _positive(t, x), steep - flat))
    return make("Mul", t.value(dy), slope)


@translates("softplus")
def softplus(t: Translation, node: fx.Node, a: fx.Node, beta: float = 1, threshold: float = 20) -> str:
    """max(v, 0) + log(1 + e^-|v|). Not Softplus, which is slower."""
    make, x = t.make.node, t.value(a)
    scaled = x if beta == 1 else make("Mul", x, float(beta))
    bend = make("Log", make("Add", make("Exp", make("Neg", make("Abs", scaled))), 1.0))
    smooth = make("Add", make("Relu", scaled), bend)
    smooth = smooth if beta == 1 else make("Mul", smooth, 1.0 / beta)
    if threshold >= _STRAIGHT:
        return smooth
    return make("Where", make("Greater", scaled, float(threshold)), x, smooth)


@translates("softplus_backward")
def softplus_backward(t: Translation, node: fx.Node, dy: fx.Node, a: fx.Node, beta: float, threshold: float) -> str:
    make, x = t.make.node, t.value(a)
    scaled = x if beta == 1 else make("Mul", x, float(beta))
    slope = make("Sigmoid", scaled)
    if threshold < _STRAIGHT:
        slope = make("Max", slope, _above(t, scaled, float(threshold)))
    return make("Mul", t.value(dy), slope)


@translates("mish")
def mish(t: Translation, node: fx.Node, a: fx.Node) -> str:
    """x n / (n + 2), n = e^x (e^x + 2): the hyperbolic tangent of the softplus.

    Source: Misra, "Mish" (2020), equation 1, with tanh and softplus written out.
    """
    make, x = t.make.node, t.value(a)
    grown = make("Exp", make("Clip", x, ABSENT, _STRAIGHT))
    n = make("Mul", grown, make("Add", grown, 2.0))
    return make("Mul", x, make("Div", n, make("Add", n, 2.0)))


@translates("mish_backward")
def mish_backward(t: Translation, node: fx.Node, dy: fx.Node, a: fx.Node) -> str:
    """(n + 4 x g (g + 1) / (n + 2)) / (n + 2), g = e^x and n as in the forward pass."""
    make, x = t.make.node, t.value(a)
    grown = make("Exp", make("Min", x, _STRAIGHT))  # not Clip, as of elu_backward()
    n = make("Mul", grown, make("Add", grown, 2.0))
    below = make("Add", n, 2.0)
    bend = make("Mul", make("Mul", x, 4.0), make("Div", make("Mul", grown, make("Add", grown, 1.0)), below))
    return make("Mul", t.value(dy), make("Div", make("Add", n, bend), below))


@translates("threshold_backward")
def threshold_backward(t: Translation, node: fx.Node, dy: fx.Node, y: fx.Node, threshold: float) -> str:
    if threshold == 0 and str(dy.target) == "aten.max_pool2d_with_indices_backward.default" and dy.args[1] is y:
        # A window hands its gradient to its maximum, whose value is the pooled one: mask before unpooling, on less.
        small, pooled = dy.args[0], t.value(_pooled(dy))
        masked = t.make.node("Mul", t.value(small), _positive(t, pooled))
        return unpooled(t, dy, masked)
    shifted = t.value(y) if threshold == 0 else t.make.node("Sub", t.value(y), float(threshold))
    return t.make.node("Mul", t.value(dy), _positive(t, shifted))


def _pooled(backward: fx.Node) -> fx.Node:
    """The pooled values of the max pooling that ``backward`` belongs to."""
    forward = backward.args[7].args[0]
    return next(user for user in forward.users if user.target is operator.getitem and user.args[1] == 0)


@translates("hardtanh_backward")
def hardtanh_backward(t: Translation, node: fx.Node, dy: fx.Node, a: fx.Node, low: float, high: float) -> str:
    inside = t.make.node("Mul", _above(t, t.value(a), low), _below(t, t.value(a), high))
    return t.make.node("Mul", t.value(dy), inside)


def _positive(t: Translation, x: str) -> str:
    """1 where x > 0, else 0; from 1e-38 on."""
    return t.make.node("HardSigmoid", x, alpha=_STEEP, beta=0.0)


def _above(t: Translation, x: str, bound: float) -> str:
    """1 where x > bound, else 0."""
    return _positive(t, x) if bound == 0 else _step(t, x, _POWER, float(bound))


def _below(t: Translation, x: str, bound: float) -> str:
    """1 where x < bound, else 0."""
    return _step(t, x, -_POWER, float(bound))


def _step(t: Translation, x: str, alpha: float, bound: float) -> str:
    """1 where x is beyond the bound in the direction of alpha: products by a power of two are exact, so the sum has the
    sign of the difference."""
    if abs(bound) > _MOST:
        x, bound = t.make.node("Sub", x, bound), 0.0
    return t.make.node("HardSigmoid", x, alpha=alpha, beta=-alpha * bound)


def _either(t: Translation, is_so: str, then: float, otherwise: float) -> str:
    """One number where ``is_so`` is 1, the other where it is 0."""
    return t.make.node("Add", t.make.node("Mul", is_so, then - otherwise), float(otherwise))

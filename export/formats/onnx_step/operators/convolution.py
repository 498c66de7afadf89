"""Convolutions, 1-d and 2-d, plain and transposed, and their backward pass.

Legend: N batch, C input channels, K output channels, G groups, T kernel taps, P output positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from export.formats.onnx_step.graph import ABSENT
from export.formats.onnx_step.operators.weight_gradient import Window, weight_gradient
from export.formats.onnx_step.translation import Translation, translates


def _conv_attributes(
    stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> dict[str, Any]:
    return {"strides": list(stride), "pads": [*padding, *padding], "dilations": list(dilation), "group": groups}


@translates("convolution")
def convolution(
    t: Translation,
    node: fx.Node,
    x: fx.Node,
    weight: fx.Node,
    bias: fx.Node | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> str:
    attributes = _conv_attributes(stride, padding, dilation, groups)
    operands = [t.value(x), t.value(weight), ABSENT if bias is None else t.value(bias)]
    if operands[-1] == ABSENT:
        operands.pop()
    if transposed:
        return t.make.node("ConvTranspose", *operands, output_padding=list(output_padding), **attributes)
    return t.make.node("Conv", *operands, **attributes)


@translates("convolution_backward")
def convolution_backward(
    t: Translation,
    node: fx.Node,
    dy: fx.Node,
    x: fx.Node,
    weight: fx.Node,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> tuple[str, ...]:
    attributes = _conv_attributes(stride, padding, dilation, groups)
    kernel = t.fixed_shape(weight, 2)
    rank = len(kernel)
    window = Window(kernel, list(stride), list(padding), list(dilation), groups)
    dx = dw = db = ABSENT
    if wanted[0]:
        if transposed:
            dx = t.make.node("Conv", t.value(dy), t.value(weight), **attributes)
        else:
            # Positions of x that the last window does not reach get their zero gradient through output_padding.
            reach = zip(t.fixed_shape(x, 2), padding, dilation, kernel, stride, strict=True)
            rest = [(size + 2 * pad - dil * (k - 1) - 1) % step for size, pad, dil, k, step in reach]
            dx = t.make.node("ConvTranspose", t.value(dy), t.value(weight), output_padding=rest, **attributes)
    if wanted[1]:
        # A transposed convolution is the backward pass of a plain one: its input plays dy, its output x.
        image, gradient = (dy, x) if transposed else (x, dy)
        dw = weight_gradient(t, image, gradient, window)
    if wanted[2]:
        db = t.make.node("ReduceSum", t.value(dy), [0, *range(2, 2 + rank)], keepdims=0)
    return dx, dw, db

"""Convolutions, 1-d and 2-d, plain and transposed, and their backward pass.

Legend: N batch, C input channels, K output channels, G groups, T kernel taps, P output positions.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from export.formats.onnx_step.graph import ABSENT
from export.formats.onnx_step.operators.geometry import Window
from export.formats.onnx_step.operators.small_images import SmallImage
from export.formats.onnx_step.operators.weight_gradient import weight_gradient
from export.formats.onnx_step.translation import Translation, translates


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
    window = Window.padded(t.fixed_shape(weight, 2), stride, padding, dilation, groups)
    bias_value = t.value(bias)
    operands = [bias_value] if bias_value else []
    if transposed:
        given = {**window.attributes, "output_padding": list(output_padding)}
        return t.make.node("ConvTranspose", t.value(x), t.value(weight), *operands, **given)
    layer = _Layer(t, x, node, weight, window)
    if layer.is_linear():
        return layer.small.whole(t.value(x), layer.weight, bias_value, layer.filters, layer.entries)
    if layer.is_cheap_depthwise():
        return layer.small.depthwise(t.value(x), layer.weight, bias_value, layer.channels)
    return t.make.node("Conv", t.value(x), layer.weight, *operands, **layer.window.attributes)


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
    window = Window.padded(t.fixed_shape(weight, 2), stride, padding, dilation, groups)
    dx = dw = db = ABSENT
    if wanted[0]:
        dx = (
            t.make.node("Conv", t.value(dy), t.value(weight), **window.attributes)
            if transposed
            else _input_gradient(t, _Layer(t, x, dy, weight, window), t.value(dy))
        )
    if wanted[1]:
        # A transposed convolution is the backward pass of a plain one: its input plays dy, its output x.
        image, gradient = (dy, x) if transposed else (x, dy)
        layer = _Layer(t, image, gradient, weight, window)
        dw = layer.widened(weight_gradient(t, image, gradient, layer.window))
    if wanted[2]:
        db = t.make.node("ReduceSum", t.value(dy), [0, *range(2, 2 + window.rank)], keepdims=0)
    return dx, dw, db


class _Layer:
    """A convolution with the taps that meet its image.

    Attributes:
        window, weight: of these taps.
        entries: of an image and of a filter, in the sizes of that weight.
    """

    def __init__(self, t: Translation, x: fx.Node, y: fx.Node, weight: fx.Node, window: Window) -> None:
        self._t, self._weight = t, weight
        self._kernel = window.kernel
        self.channels, *self.image = t.fixed_shape(x)
        self.filters, *self.positions = t.fixed_shape(y)
        self.window, self._first = window.met(self.image, self.positions)
        self.entries = self.channels * self.window.taps
        self.small = SmallImage(t, self.window, self.image, self.positions)

    @property
    def weight(self) -> str:
        value = self._t.value(self._weight)
        if self.window.kernel == self._kernel:
            return value
        ends = [first + k for first, k in zip(self._first, self.window.kernel, strict=True)]
        return self._t.make.node("Slice", value, self._first, ends, [*range(2, 2 + self.window.rank)])

    def widened(self, gradient: str) -> str:
        """Zeros for taps that meet padding alone."""
        if self.window.kernel == self._kernel:
            return gradient
        rest = [
            whole - first - k for whole, first, k in zip(self._kernel, self._first, self.window.kernel, strict=True)
        ]
        return self._t.make.node("Pad", gradient, [0, 0, *self._first, 0, 0, *rest])

    def is_linear(self) -> bool:
        return self.window.groups == 1 and self.window.is_whole(self.image)

    def is_cheap_depthwise(self) -> bool:
        is_depthwise = self.window.groups == self.channels == self.filters > 1
        return is_depthwise and self.small.is_cheap_depthwise()


def _input_gradient(t: Translation, layer: _Layer, dy: str) -> str:
    if layer.is_linear():
        return layer.small.whole_backward(dy, layer.weight, layer.filters, layer.entries)
    if layer.is_cheap_depthwise():
        return layer.small.depthwise_backward(dy, layer.weight, layer.channels)
    if layer.window.groups == 1 and layer.window.is_pointwise() and max(layer.window.stride) == 1:
        # Without the copy that a transposed convolution makes: 0.4 to 0.9 of its time (measured).
        turned = t.make.node("Transpose", layer.weight, perm=[1, 0, *range(2, 2 + layer.window.rank)])
        return t.make.node("Conv", dy, turned)
    # Positions of x that the last window does not reach get their zero gradient through output_padding.
    given = {**layer.window.attributes, "output_padding": layer.window.unreached(layer.image)}
    return t.make.node("ConvTranspose", dy, layer.weight, **given)

"""Activations that wait for the backward pass in float16."""

from __future__ import annotations

from onnx import TensorProto
from torch import fx

from export.formats.onnx_step.translation import Translation, translates
from export.forms.kept_activations import LARGEST


@translates("apportion_forms.narrowed")
def narrowed(t: Translation, node: fx.Node, x: fx.Node) -> str:
    # ONNX Runtime computes what the backward pass alone reads when that comes to it, and x would wait until then. So
    # who reads x from here on reads a view of it whose shape is that of the float16 values.
    half = t.make.node("Cast", t.make.node("Clip", t.value(x), -LARGEST, LARGEST), to=TensorProto.FLOAT16)
    t.replace(x, t.make.node("Reshape", t.value(x), t.make.node("Shape", half)))
    return half


@translates("apportion_forms.widened")
def widened(t: Translation, node: fx.Node, x: fx.Node) -> str:
    return t.make.node("Cast", t.value(x), to=TensorProto.FLOAT)

"""Elementwise operations: arithmetic, comparisons and unary functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx

from export.formats.onnx_step.graph import ABSENT
from export.formats.onnx_step.translation import NUMPY_TYPES, ONNX_TYPES, Translation, translates

_BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "maximum": "Max", "minimum": "Min"}
_COMPARE = {"lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "eq": "Equal"}
_UNARY = {
    "relu": "Relu", "exp": "Exp", "log": "Log", "erf": "Erf", "neg": "Neg", "tanh": "Tanh", "sigmoid": "Sigmoid",
    "sqrt": "Sqrt", "abs": "Abs", "sign": "Sign", "sgn": "Sign",
    "atan": "Atan", "reciprocal": "Reciprocal", "sin": "Sin", "cos": "Cos",
    "floor": "Floor", "ceil": "Ceil", "hardswish": "HardSwish", "logical_not": "Not", "bitwise_not": "Not",
    "isnan": "IsNaN",
}  # fmt: skip
_LOGIC = {"bitwise_and": "And", "logical_and": "And", "bitwise_or": "Or", "logical_or": "Or", "logical_xor": "Xor"}


def _dtype_of(t: Translation, *items: Any) -> torch.dtype:
    """The dtype two operands are compared in: that of the tensors, floating before integer."""
    kinds = [t.tensor(i).dtype for i in items if isinstance(i, fx.Node) and isinstance(i.meta["val"], torch.Tensor)]
    if any(isinstance(i, float) for i in items):
        kinds.append(torch.float32)
    result = kinds[0]
    for kind in kinds[1:]:
        result = torch.promote_types(result, kind)
    return result


@translates(*_BINARY)
def binary(t: Translation, node: fx.Node, a: Any, b: Any, *, alpha: Any = 1, rounding_mode: Any = None) -> str:
    dtype = t.tensor(node).dtype
    if rounding_mode is not None:
        raise t.refuse(node, f"division rounded by '{rounding_mode}'", "plain division")
    second = t.value(b, dtype)
    if alpha != 1:
        second = t.make.node("Mul", second, np.array(alpha, NUMPY_TYPES[dtype]))
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    if dtype == torch.bool:
        return t.make.node({"add": "Or", "mul": "And"}[name], t.value(a, dtype), second)
    return t.make.node(_BINARY[name], t.value(a, dtype), second)


@translates(*_COMPARE)
def compare(t: Translation, node: fx.Node, a: Any, b: Any) -> str:
    dtype = _dtype_of(t, a, b)
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    if dtype == torch.bool:
        dtype = torch.int32
    return t.make.node(_COMPARE[name], t.value(a, dtype), t.value(b, dtype))


@translates("ne")
def not_equal(t: Translation, node: fx.Node, a: Any, b: Any) -> str:
    dtype = _dtype_of(t, a, b)
    return t.make.node("Not", t.make.node("Equal", t.value(a, dtype), t.value(b, dtype)))


@translates(*_LOGIC)
def logic(t: Translation, node: fx.Node, a: Any, b: Any) -> str:
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    if t.tensor(node).dtype != torch.bool:
        raise t.refuse(node, f"{name} of integers", "comparisons of booleans")
    return t.make.node(_LOGIC[name], t.value(a, torch.bool), t.value(b, torch.bool))


@translates(*_UNARY)
def unary(t: Translation, node: fx.Node, a: fx.Node) -> str:
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    return t.make.node(_UNARY[name], t.value(a, t.tensor(node).dtype if name != "isnan" else None))


@translates("detach", "alias", "clone", "view_of", "lift_fresh_copy", "contiguous")
def same(t: Translation, node: fx.Node, a: fx.Node, **_: Any) -> str:
    return t.value(a)


@translates("_to_copy", "convert_element_type")
def cast(t: Translation, node: fx.Node, a: fx.Node, *_: Any, **__: Any) -> str:
    return t.value(a, t.tensor(node).dtype)


@translates("copy")
def copy(t: Translation, node: fx.Node, _: fx.Node, source: fx.Node, **__: Any) -> str:
    value = t.value(source, t.tensor(node).dtype)
    if t.shape(source) == t.shape(node):
        return value
    return t.make.node("Expand", value, t.dims.shape(t.tensor(node).shape, infer=False))


@translates("rsqrt")
def rsqrt(t: Translation, node: fx.Node, a: fx.Node) -> str:
    return t.make.node("Reciprocal", t.make.node("Sqrt", t.value(a)))


@translates("log1p")
def log1p(t: Translation, node: fx.Node, a: fx.Node) -> str:
    return t.make.node("Log", t.make.node("Add", t.value(a), 1.0))


@translates("expm1")
def expm1(t: Translation, node: fx.Node, a: fx.Node) -> str:
    # e^x - 1 loses digits near 0; 2 tanh(x/2) / (1 - tanh(x/2)) keeps them, and the two agree where tanh saturates.
    half = t.make.node("Tanh", t.make.node("Mul", t.value(a), 0.5))
    near = t.make.node("Div", t.make.node("Mul", half, 2.0), t.make.node("Sub", t.scalar(1.0), half))
    far = t.make.node("Sub", t.make.node("Exp", t.value(a)), 1.0)
    is_near = t.make.node("Less", t.make.node("Abs", t.value(a)), 1.0)
    return t.make.node("Where", is_near, near, far)


@translates("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(t: Translation, node: fx.Node, a: Any, exponent: Any) -> str:
    if exponent == 2:
        return t.make.node("Mul", t.value(a), t.value(a))
    if exponent in (-0.5, 0.5):
        root = t.make.node("Sqrt", t.value(a))
        return root if exponent > 0 else t.make.node("Reciprocal", root)
    return t.make.node("Pow", t.value(a, torch.float32), t.value(exponent, torch.float32))


@translates("clamp", "clamp_min", "clamp_max")
def clamp(t: Translation, node: fx.Node, a: fx.Node, low: Any = None, high: Any = None, **named: Any) -> str:
    low, high = named.get("min", low), named.get("max", high)
    if "clamp_max" in str(node.target):
        low, high = None, low
    dtype = t.tensor(node).dtype
    if isinstance(low, fx.Node) or isinstance(high, fx.Node):
        result = t.value(a, dtype)
        result = t.make.node("Max", result, t.value(low, dtype)) if low is not None else result
        return t.make.node("Min", result, t.value(high, dtype)) if high is not None else result
    bounds = [ABSENT if b is None else t.value(b, dtype) for b in (low, high)]
    return t.make.node("Clip", t.value(a, dtype), *bounds)


@translates("where")
def where(t: Translation, node: fx.Node, condition: fx.Node, a: Any, b: Any) -> str:
    dtype = t.tensor(node).dtype
    if dtype == torch.bool:
        chosen = t.make.node("And", t.value(condition), t.value(a, dtype))
        return t.make.node("Or", chosen, t.make.node("And", t.make.node("Not", t.value(condition)), t.value(b, dtype)))
    return t.make.node("Where", t.value(condition), t.value(a, dtype), t.value(b, dtype))


@translates("scalar_tensor")
def scalar_tensor(t: Translation, node: fx.Node, number: Any, **_: Any) -> str:
    return t.value(number, t.tensor(node).dtype)


@translates("full", "full_like", "zeros", "ones", "empty", "empty_like", "new_empty_strided")
def full(t: Translation, node: fx.Node, _: Any, number: Any = None, *__: Any, **___: Any) -> str:
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    fill = number if name.startswith("full") else int(name == "ones")
    tensor = t.tensor(node)
    sizes, dtype = t.dims.sizes(tensor.shape), NUMPY_TYPES[tensor.dtype]
    if isinstance(fill, fx.Node):
        return t.make.node("Expand", t.value(fill, tensor.dtype), t.dims.shape(tensor.shape, infer=False))
    if all(isinstance(s, int) for s in sizes) and int(np.prod(sizes)) <= 64:
        return t.make.constant(np.full(sizes, fill, dtype))
    from onnx import numpy_helper

    value = numpy_helper.from_array(np.array([fill], dtype))
    return t.make.node("ConstantOfShape", t.dims.shape(tensor.shape, infer=False), value=value)


@translates("arange")
def arange(t: Translation, node: fx.Node, *bounds: Any, **_: Any) -> str:
    tensor = t.tensor(node)
    start, end, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    sizes = t.dims.sizes(tensor.shape)
    if isinstance(sizes[0], int) and not any(isinstance(b, fx.Node) for b in bounds):
        return t.make.constant(np.arange(start, end, step).astype(NUMPY_TYPES[tensor.dtype]))
    low, high, by = (t.value(v, torch.int64) for v in (start, end, step))
    return t.make.node("Cast", t.make.node("Range", low, high, by), to=ONNX_TYPES[tensor.dtype])

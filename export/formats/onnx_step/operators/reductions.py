"""Sums, means, extrema, softmax and cumulative sums."""

from __future__ import annotations

import math
from typing import Any

import torch
from onnx import TensorProto
from torch import fx

from export.capture import layer_of
from export.formats.onnx_step.translation import Translation, translates

_REDUCE = {"sum": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd"}


def _axes(dims: Any) -> list[list[int]]:
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return []
    return [[dims] if isinstance(dims, int) else list(dims)]


@translates(*_REDUCE)
def reduce(t: Translation, node: fx.Node, a: fx.Node, dims: Any = None, keep: bool = False, **_: Any) -> str:
    name = str(node.target).removeprefix("aten.").partition(".")[0]
    return t.make.node(_REDUCE[name], t.value(a, t.tensor(node).dtype), *_axes(dims), keepdims=int(keep))


@translates("var")
def variance(t: Translation, node: fx.Node, a: fx.Node, dims: Any = None, correction: int = 1, **named: Any) -> str:
    """In two passes; the written-out form of ``std`` and ``var`` ends here."""
    rank = t.tensor(a).dim()
    axes = [int(d) % rank for d in (range(rank) if dims is None else dims)]
    count = math.prod(t.dims.fixed(t.tensor(a).shape[d], layer=layer_of(node)) for d in axes)
    centred = t.make.node("Sub", t.value(a), t.make.node("ReduceMean", t.value(a), axes, keepdims=1))
    total = t.make.node(
        "ReduceSum", t.make.node("Mul", centred, centred), axes, keepdims=int(named.get("keepdim", False))
    )
    return t.make.node("Mul", total, 1.0 / max(1e-30, count - named.get("correction", correction)))


@translates("amax", "amin")
def extremum(t: Translation, node: fx.Node, a: fx.Node, dims: Any = None, keep: bool = False) -> str:
    kind = "ReduceMax" if "amax" in str(node.target) else "ReduceMin"
    return t.make.node(kind, t.value(a), *_axes(dims), keepdims=int(keep))


@translates("max.dim", "min.dim")
def extremum_with_index(t: Translation, node: fx.Node, a: fx.Node, dim: int, keep: bool = False) -> tuple[str, ...]:
    highest = "max" in str(node.target)
    index = t.make.node("ArgMax" if highest else "ArgMin", t.value(a), axis=dim, keepdims=int(keep))
    return t.make.node("ReduceMax" if highest else "ReduceMin", t.value(a), [dim], keepdims=int(keep)), index


@translates("max.default", "min.default")
def extremum_of_all(t: Translation, node: fx.Node, a: fx.Node) -> str:
    return t.make.node("ReduceMax" if "max" in str(node.target) else "ReduceMin", t.value(a), keepdims=0)


@translates("argmax", "argmin")
def argument(t: Translation, node: fx.Node, a: fx.Node, dim: Any = None, keep: bool = False) -> str:
    if dim is None:
        raise t.refuse(node, "argmax over all elements", "argmax over one dimension")
    kind = "ArgMax" if "argmax" in str(node.target) else "ArgMin"
    return t.make.node(kind, t.value(a), axis=dim, keepdims=int(keep))


@translates("any", "all")
def any_or_all(t: Translation, node: fx.Node, a: fx.Node, dim: Any = None, keep: bool = False) -> str:
    kind = "ReduceMax" if "any" in str(node.target) else "ReduceMin"
    number = t.make.node("Cast", t.value(a, torch.bool), to=TensorProto.INT32)
    return t.make.node("Cast", t.make.node(kind, number, *_axes(dim), keepdims=int(keep)), to=TensorProto.BOOL)


@translates("_softmax", "_log_softmax")
def softmax(t: Translation, node: fx.Node, a: fx.Node, dim: int, _: bool) -> str:
    return t.make.node("LogSoftmax" if "log" in str(node.target) else "Softmax", t.value(a), axis=dim)


@translates("cumsum")
def cumulative_sum(t: Translation, node: fx.Node, a: fx.Node, dim: int, **_: Any) -> str:
    return t.make.node("CumSum", t.value(a, t.tensor(node).dtype), t.value(dim, torch.int64))

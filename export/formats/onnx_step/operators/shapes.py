"""Operations that move elements: reshapes, transposes, slices, joins, gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from onnx import TensorProto
from torch import fx

from export.capture import layer_of
from export.formats.onnx_step.translation import Translation, product, translates

_END = 2**62
_ONE_HOT_ROWS = 512
"""Embedding tables up to this many rows get their gradient as one product with a one-hot matrix, others by scatter."""


@translates("view", "_unsafe_view", "reshape")
def view(t: Translation, node: fx.Node, a: fx.Node, _: Any) -> str:
    if t.shape(a) == t.shape(node):
        return t.value(a)
    return t.make.node("Reshape", t.value(a), t.dims.shape(t.tensor(node).shape))


@translates("permute")
def permute(t: Translation, node: fx.Node, a: fx.Node, order: Sequence[int]) -> str:
    order = [d % len(order) for d in order]
    while str(a.target) == "aten.permute.default":
        before = [d % len(order) for d in a.args[1]]
        a, order = a.args[0], [before[d] for d in order]
    return t.value(a) if order == sorted(order) else t.make.node("Transpose", t.value(a), perm=order)


@translates("unsqueeze")
def unsqueeze(t: Translation, node: fx.Node, a: fx.Node, dim: int) -> str:
    return t.make.node("Unsqueeze", t.value(a), [dim])


@translates("squeeze")
def squeeze(t: Translation, node: fx.Node, a: fx.Node, dims: Any = None) -> str:
    rank = t.tensor(a).dim()
    wanted = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
    sizes = t.shape(a)
    gone = [d % rank for d in wanted if sizes[d % rank] == 1]
    return t.make.node("Squeeze", t.value(a), gone) if gone else t.value(a)


@translates("expand")
def expand(t: Translation, node: fx.Node, a: fx.Node, _: Any, **__: Any) -> str:
    if t.shape(a) == t.shape(node):
        return t.value(a)
    return t.make.node("Expand", t.value(a), t.dims.shape(t.tensor(node).shape, infer=False))


@translates("broadcast_in_dim")
def broadcast_in_dim(t: Translation, node: fx.Node, a: fx.Node, _: Any, dims: Sequence[int]) -> str:
    sizes: list[Any] = [1] * t.tensor(node).dim()
    for source, target in zip(t.tensor(a).shape, dims, strict=True):
        sizes[target] = source
    placed = t.make.node("Reshape", t.value(a), t.dims.shape(sizes))
    return t.make.node("Expand", placed, t.dims.shape(t.tensor(node).shape, infer=False))


@translates("repeat")
def repeat(t: Translation, node: fx.Node, a: fx.Node, counts: Sequence[Any]) -> str:
    return t.make.node("Tile", _with_rank(t, a, len(counts)), t.dims.shape(counts, infer=False))


def _with_rank(t: Translation, a: fx.Node, rank: int) -> str:
    missing = rank - t.tensor(a).dim()
    return t.make.node("Unsqueeze", t.value(a), list(range(missing))) if missing else t.value(a)


@translates("cat")
def concatenate(t: Translation, node: fx.Node, parts: Sequence[fx.Node], dim: int = 0) -> str:
    dtype = t.tensor(node).dtype
    parts = [p for p in parts if t.tensor(p).dim() == t.tensor(node).dim()]  # torch skips legacy empty parts
    return t.make.node("Concat", *[t.value(p, dtype) for p in parts], axis=dim)


@translates("stack")
def stack(t: Translation, node: fx.Node, parts: Sequence[fx.Node], dim: int = 0) -> str:
    dim %= t.tensor(node).dim()
    return t.make.node("Concat", *[t.make.node("Unsqueeze", t.value(p), [dim]) for p in parts], axis=dim)


@translates("split", "split_with_sizes", "chunk", "unsafe_split_with_sizes")
def split(t: Translation, node: fx.Node, a: fx.Node, _: Any, dim: int = 0) -> tuple[str, ...]:
    dim %= t.tensor(a).dim()
    sizes = [t.dims.fixed(part.shape[dim], layer=layer_of(node)) for part in node.meta["val"]]
    if len(sizes) == 1:
        return (t.value(a),)
    return t.make.node_with_outputs("Split", len(sizes), t.value(a), sizes, axis=dim)


@translates("unbind")
def unbind(t: Translation, node: fx.Node, a: fx.Node, dim: int = 0) -> tuple[str, ...]:
    count = len(node.meta["val"])
    parts = (
        t.make.node_with_outputs("Split", count, t.value(a), axis=dim, num_outputs=count)
        if count > 1
        else (t.value(a),)
    )
    return tuple(t.make.node("Squeeze", part, [dim]) for part in parts)


@translates("select")
def select(t: Translation, node: fx.Node, a: fx.Node, dim: int, index: Any) -> str:
    if isinstance(index, int) and index < 0 and isinstance(t.shape(a)[dim], int):
        index += t.shape(a)[dim]
    return t.make.node("Gather", t.value(a), t.value(index, torch.int64), axis=dim)


@translates("slice")
def slice_(
    t: Translation, node: fx.Node, a: fx.Node, dim: int = 0, start: Any = 0, end: Any = _END, step: int = 1
) -> str:
    if t.shape(a) == t.shape(node):
        return t.value(a)
    low = t.dims.vector(t.dims.size(start or 0))
    high = t.dims.vector(t.dims.size(_END if end is None else end))
    return t.make.node("Slice", t.value(a), low, high, [dim], [step])


@translates("slice_scatter")
def slice_scatter(
    t: Translation, node: fx.Node, a: fx.Node, b: fx.Node, dim: int = 0, start: Any = 0, end: Any = _END, step: int = 1
) -> str:
    if t.shape(a) == t.shape(b):
        return t.value(b)
    rank, size, part = t.tensor(a).dim(), *(t.dims.fixed(t.tensor(x).shape[dim], layer=layer_of(node)) for x in (a, b))
    first = (start or 0) % size
    if is_zero(a) and step == 1:
        pads = [0] * (2 * rank)
        pads[dim % rank], pads[rank + dim % rank] = first, size - first - part
        return t.make.node("Pad", t.value(b), pads)
    rows = np.arange(first, first + part * step, step, dtype=np.int64)
    shape = [1] * rank
    shape[dim % rank] = part
    index = t.make.node("Expand", rows.reshape(shape), t.dims.shape(t.tensor(b).shape, infer=False))
    return t.make.node("ScatterElements", t.value(a), index, t.value(b), axis=dim)


@translates("select_scatter")
def select_scatter(t: Translation, node: fx.Node, a: fx.Node, b: fx.Node, dim: int, index: int) -> str:
    rank = t.tensor(a).dim()
    dim %= rank
    size = t.dims.fixed(t.tensor(a).shape[dim], layer=layer_of(node))
    index %= size
    row = t.make.node("Unsqueeze", t.value(b), [dim])
    if is_zero(a):
        pads = [0] * (2 * rank)
        pads[dim], pads[rank + dim] = index, size - 1 - index
        return t.make.node("Pad", row, pads)
    parts = [
        t.make.node("Slice", t.value(a), [0], [index], [dim]),
        row,
        t.make.node("Slice", t.value(a), [index + 1], [size], [dim]),
    ]
    kept = [p for p, empty in zip(parts, (index == 0, False, index == size - 1), strict=True) if not empty]
    return t.make.node("Concat", *kept, axis=dim)


def is_zero(node: fx.Node) -> bool:
    """Whether a node is made of zeros only, as the gradients of slices are before they are filled."""
    name = str(node.target)
    return name.startswith(("aten.zeros", "aten.full")) and (name.startswith("aten.zeros") or node.args[1] == 0)


@translates("constant_pad_nd")
def pad(t: Translation, node: fx.Node, a: fx.Node, widths: Sequence[int], number: float = 0) -> str:
    rank = t.tensor(a).dim()
    before, after = [0] * rank, [0] * rank
    for i in range(len(widths) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = widths[2 * i], widths[2 * i + 1]
    return t.make.node("Pad", t.value(a), [*before, *after], t.value(number, t.tensor(node).dtype))


@translates("flip")
def flip(t: Translation, node: fx.Node, a: fx.Node, dims: Sequence[int]) -> str:
    count = len(dims)
    return t.make.node("Slice", t.value(a), [-1] * count, [-_END] * count, list(dims), [-1] * count)


@translates("roll")
def roll(t: Translation, node: fx.Node, a: fx.Node, shifts: Any, dims: Any = ()) -> str:
    shifts, dims = ([v] if isinstance(v, int) else list(v) for v in (shifts, dims))
    if not dims:
        raise t.refuse(node, "roll over the flattened tensor", "roll over named dimensions")
    result = t.value(a)
    for shift, dim in zip(shifts, dims, strict=True):
        cut = -shift % t.dims.fixed(t.tensor(a).shape[dim], layer=layer_of(node))
        if cut:
            tail = t.make.node("Slice", result, [cut], [_END], [dim])
            result = t.make.node("Concat", tail, t.make.node("Slice", result, [0], [cut], [dim]), axis=dim)
    return result


@translates("gather")
def gather(t: Translation, node: fx.Node, a: fx.Node, dim: int, index: fx.Node, **_: Any) -> str:
    return t.make.node("GatherElements", t.value(a), t.value(index), axis=dim)


@translates("index_select")
def index_select(t: Translation, node: fx.Node, a: fx.Node, dim: int, index: fx.Node) -> str:
    return t.make.node("Gather", t.value(a), t.value(index), axis=dim)


@translates("scatter_add")
def scatter_add(t: Translation, node: fx.Node, a: fx.Node, dim: int, index: fx.Node, b: fx.Node) -> str:
    return t.make.node("ScatterElements", t.value(a), t.value(index), t.value(b), axis=dim, reduction="add")


@translates("scatter.value", "scatter.src")
def scatter(t: Translation, node: fx.Node, a: fx.Node, dim: int, index: fx.Node, b: Any) -> str:
    dtype = t.tensor(node).dtype
    source = t.value(b, dtype)
    if not isinstance(b, fx.Node):
        source = t.make.node("Expand", source, t.dims.shape(t.tensor(index).shape, infer=False))
    return t.make.node("ScatterElements", t.value(a), t.value(index), source, axis=dim)


@translates("embedding")
def embedding(t: Translation, node: fx.Node, table: fx.Node, index: fx.Node, *_: Any) -> str:
    return t.make.node("Gather", t.value(table), t.value(index))


@translates("embedding_dense_backward")
def embedding_backward(
    t: Translation, node: fx.Node, dy: fx.Node, index: fx.Node, rows: int, padding_index: int, scale_by_count: bool
) -> str:
    if scale_by_count:
        raise t.refuse(node, "Embedding with scale_grad_by_freq", "scale_grad_by_freq=False")
    width = product(t.fixed_shape(dy, t.tensor(dy).dim() - 1))
    flat = t.make.node("Reshape", t.value(dy), [-1, width])
    if rows <= _ONE_HOT_ROWS:
        positions = t.make.node("Reshape", t.value(index), [-1, 1])
        wanted = np.arange(rows, dtype=np.int64)
        if padding_index >= 0:
            wanted[padding_index] = -1
        hits = t.make.node("Cast", t.make.node("Equal", positions, wanted), to=TensorProto.FLOAT)
        return t.make.node("Gemm", hits, flat, transA=1)
    result = t.make.node(
        "ScatterND", _zeros(t, [rows, width]), t.make.node("Reshape", t.value(index), [-1, 1]), flat, reduction="add"
    )
    if padding_index >= 0:
        keep = np.ones((rows, 1), np.float32)
        keep[padding_index] = 0
        result = t.make.node("Mul", result, keep)
    return result


def _zeros(t: Translation, sizes: Sequence[int]) -> str:
    from onnx import numpy_helper

    return t.make.node("ConstantOfShape", list(sizes), value=numpy_helper.from_array(np.zeros(1, np.float32)))

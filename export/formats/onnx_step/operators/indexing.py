"""Reading and writing through index tensors; enlarging an image by interpolation is made of these.

Legend: P places, the common shape of the index tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from export.capture import layer_of
from export.formats.onnx_step.dimensions import Size
from export.formats.onnx_step.operators.shapes import is_zero
from export.formats.onnx_step.translation import ONNX_TYPES, Translation, product, translates

_Indices = Sequence[fx.Node | None]
_Used = list[tuple[int, fx.Node]]
_FLAT_BYTES = 1 << 20
"""Fixed indices are multiplied out while exporting up to this size, otherwise in the step."""


@translates("index.Tensor", "_unsafe_index")
def index(t: Translation, node: fx.Node, a: fx.Node, indices: _Indices) -> str:
    used = _used(t, node, indices, "indexing with a boolean mask", "torch.where or index_select")
    if len(used) == 1:
        return t.make.node("Gather", t.value(a), t.value(used[0][1]), axis=used[0][0])
    lines = _lines(t, a, used)
    if lines is not None:
        result = t.value(a)
        for (dim, _), line in zip(used, lines, strict=True):
            result = t.make.node("Gather", result, line, axis=dim)
        return result
    first, last = used[0][0], used[-1][0]
    sizes = list(t.tensor(a).shape)
    flat = [*sizes[:first], product(_extents(t, a, used)), *sizes[last + 1 :]]
    return t.make.node(
        "Gather", t.make.node("Reshape", t.value(a), t.dims.shape(flat)), _flat_index(t, a, used), axis=first
    )


@translates("index_put", "_unsafe_index_put")
def index_put(
    t: Translation, node: fx.Node, a: fx.Node, indices: _Indices, b: fx.Node, accumulate: bool = False
) -> str:
    used = _used(t, node, indices, "writing through a boolean mask", "torch.where")
    places = torch.broadcast_shapes(*(t.tensor(i).shape for _, i in used))
    if t.tensor(b).dim() != len(places) + t.tensor(a).dim() - len(used):
        raise t.refuse(node, "writing a broadcast value through an index", "torch.where")
    lines = _lines(t, a, used) if accumulate and is_zero(a) else None
    if lines is not None and [d for d, _ in used] == [t.tensor(a).dim() - 2, t.tensor(a).dim() - 1]:
        rows, columns = (_adding(line, size) for line, size in zip(lines, _extents(t, a, used), strict=True))
        return t.make.node("MatMul", rows, t.make.node("MatMul", t.value(b), np.ascontiguousarray(columns.T)))
    return _scattered(t, a, used, b, len(places), accumulate)


def _scattered(t: Translation, a: fx.Node, used: _Used, b: fx.Node, rank: int, accumulate: bool) -> str:
    """``a`` with its indexed dimensions made one and moved to the front, written there, and put back."""
    sizes, first, count = list(t.tensor(a).shape), used[0][0], len(used)
    target = t.value(a)
    if count > 1:
        flat = [*sizes[:first], product(_extents(t, a, used)), *sizes[first + count :]]
        target = t.make.node("Reshape", target, t.dims.shape(flat))
    order = [first, *[d for d in range(len(sizes) - count + 1) if d != first]]
    target = t.make.node("Transpose", target, perm=order) if first else target
    front = [*range(first, first + rank), *range(first), *range(first + rank, t.tensor(b).dim())]
    rows = t.make.node("Transpose", t.value(b), perm=front) if first else t.value(b)
    where = t.make.node("Unsqueeze", t.value(used[0][1]) if count == 1 else _flat_index(t, a, used), [-1])
    extra = {"reduction": "add"} if accumulate else {}
    result = t.make.node("ScatterND", target, where, rows, **extra)
    back = [order.index(d) for d in range(len(order))]
    result = t.make.node("Transpose", result, perm=back) if first else result
    return t.make.node("Reshape", result, t.dims.shape(sizes)) if count > 1 else result


def _used(t: Translation, node: fx.Node, indices: _Indices, reason: str, instead: str) -> _Used:
    """The indexed dimensions, which have to be neighbours, and their index tensors."""
    used = [(dim, i) for dim, i in enumerate(indices) if i is not None]
    if any(t.tensor(i).dtype == torch.bool for _, i in used):
        raise t.refuse(node, reason, instead)
    if used[-1][0] - used[0][0] != len(used) - 1:
        raise t.refuse(node, "indexing of dimensions that are not neighbours", "a permute before the indexing")
    return used


def _extents(t: Translation, a: fx.Node, used: _Used) -> list[Size]:
    """Sizes of the indexed dimensions; the first may be the batch's."""
    first, *others = (t.tensor(a).shape[dim] for dim, _ in used)
    return [t.dims.size(first), *(t.dims.fixed(size, layer=layer_of(a)) for size in others)]


def _lines(t: Translation, a: fx.Node, used: _Used) -> list[np.ndarray] | None:
    """One fixed list of positions per dimension, where the places are every combination of them: a grid of pixels."""
    lines = []
    for axis, (extent, (_, item)) in enumerate(zip(_extents(t, a, used), used, strict=True)):
        value, behind = t.known(item), len(used) - 1 - axis
        if value is None or not isinstance(extent, int) or value.dim() > len(used) or value.dim() <= behind:
            return None
        if value.numel() != value.shape[value.dim() - 1 - behind]:
            return None
        lines.append(value.reshape(-1).remainder(extent).numpy())
    return lines


def _adding(line: np.ndarray, size: int) -> np.ndarray:
    """The matrix [size, len(line)] that adds what is written at each position of ``line``."""
    return (np.arange(size)[:, None] == line[None, :]).astype(np.float32)


def _flat_index(t: Translation, a: fx.Node, used: _Used) -> str:
    """[P] positions in the product of the indexed dimensions; negative ones count from the end."""
    extents = _extents(t, a, used)
    steps = [product(extents[i + 1 :]) for i in range(len(extents))]
    known = [t.known(item) for _, item in used]
    if isinstance(extents[0], int) and all(value is not None for value in known):
        total = sum(v.remainder(e) * s for v, e, s in zip(known, extents, steps, strict=True) if v is not None)
        assert isinstance(total, torch.Tensor)
        if total.numel() * 8 <= _FLAT_BYTES:
            return t.make.constant(total.to(torch.int64).numpy())
    parts = []
    for (_, item), extent, step in zip(used, extents, steps, strict=True):
        place = t.value(item, torch.int64)
        # The divisor's sign is what Mod's result has for integers, as in torch's remainder.
        size = (
            np.array(extent, np.int64)
            if isinstance(extent, int)
            else t.dims.scalar(extent, ONNX_TYPES[torch.int64], np.int64)
        )
        parts.append(_scaled(t, t.make.node("Mod", place, size), step))
    result = parts[0]
    for part in parts[1:]:
        result = t.make.node("Add", result, part)
    return result


def _scaled(t: Translation, value: str, step: int) -> Any:
    return value if step == 1 else t.make.node("Mul", value, np.array(step, np.int64))

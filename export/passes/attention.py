"""Attention as one kernel, and its gradient as another: a head's scores are never read or written from far away.

Found in the rewritten program is the usual form: one linear layer gives queries, keys and values [B, T, 3, H, D], which
are permuted to [3, B, H, T, D] and taken apart. What else reads a value in between finds it as it was.
"""

# Legend: B images, T tokens, H heads, D channels of a head.

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from export.passes.operators import NATIVE, define

ATEN = torch.ops.aten
_APART, _TOGETHER = [2, 0, 3, 1, 4], [1, 3, 0, 2, 4]
"""[B, T, 3, H, D] to [3, B, H, T, D], and back."""
_HEADS, _LAST = [0, 2, 1, 3], [0, 1, 3, 2]


def _attention(qkv: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    q, k, v = qkv.permute(_APART).unbind(0)
    weights = torch.softmax(q @ k.mT * scale, -1)
    return (weights @ v).permute(_HEADS).contiguous(), weights


def _attention_backward(dy: Tensor, qkv: Tensor, weights: Tensor, scale: float) -> Tensor:
    q, k, v = qkv.permute(_APART).unbind(0)
    g = dy.permute(_HEADS)
    dweights = g @ v.mT
    dscores = weights * (dweights - (dweights * weights).sum(-1, keepdim=True)) * scale
    return torch.stack([dscores @ k, dscores.mT @ q, weights.mT @ g]).permute(_TOGETHER).contiguous()


def _attention_shape(qkv: Tensor, _scale: float) -> tuple[Tensor, Tensor]:
    b, t, _, h, d = qkv.shape
    return qkv.new_empty((b, t, h, d)), qkv.new_empty((b, h, t, t))


define("attention(Tensor qkv, float scale)", 2, _attention_shape, _attention)
define(
    "attention_backward(Tensor dy, Tensor qkv, Tensor weights, float scale)",
    1,
    lambda _dy, qkv, *_: torch.empty_like(qkv),
    _attention_backward,
)


@dataclass(frozen=True)
class _Found:
    """An attention of the program.

    Attributes:
        qkv: [B, T, 3, H, D]
        weights: the softmax, [B, H, T, T].
        y: [B, T, H, D]
    """

    qkv: fx.Node
    parts: tuple[fx.Node, fx.Node, fx.Node]
    weights: fx.Node
    y: fx.Node
    scale: float


def join_attention(graph: fx.Graph) -> None:
    """Replace every attention of ``graph``, and its gradient where there is one."""
    for softmax in graph.find_nodes(op="call_function", target=NATIVE.softmax.default):
        found = _attention_of(softmax)
        if found is None:
            continue
        gradients = [node for node in _users(softmax) if node.target is NATIVE.softmax_backward.default]
        with graph.inserting_before(softmax):
            joined = graph.call_function(NATIVE.attention.default, (found.qkv, found.scale))
            y, weights = (graph.call_function(operator.getitem, (joined, i)) for i in (0, 1))
        y.meta, weights.meta = dict(found.y.meta), dict(softmax.meta)
        joined.meta = {**softmax.meta, "val": (y.meta["val"], weights.meta["val"])}
        for backward in gradients:
            _join_backward(graph, found, backward, weights)
        found.y.replace_all_uses_with(y)
        softmax.replace_all_uses_with(weights)


def _join_backward(graph: fx.Graph, found: _Found, backward: fx.Node, weights: fx.Node) -> None:
    scores = next((n for n in _users(backward) if n.target is NATIVE.scale.default and n.args[1] == found.scale), None)
    product = _base(backward.args[0])
    if scores is None or not _is_product(product, transposed=(False, True)):
        return
    dy, v = (_base(a) for a in product.args[:2])
    if not _is_permute(dy, _HEADS) or v is not found.parts[2]:
        return
    for dq in _users(scores):
        for stack in _users(dq):
            if stack.target is not ATEN.stack.default or (len(stack.args) > 1 and stack.args[1] != 0):
                continue
            if not _are_gradients(found, stack.args[0], scores, dy):
                continue
            for dqkv in list(stack.users):
                if _is_permute(dqkv, _TOGETHER) and not _is_output(dqkv):
                    with graph.inserting_before(dqkv):
                        joined = graph.call_function(
                            NATIVE.attention_backward.default, (dy.args[0], found.qkv, weights, found.scale)
                        )
                    joined.meta = dict(dqkv.meta)
                    dqkv.replace_all_uses_with(joined)


def _attention_of(softmax: fx.Node) -> _Found | None:
    scaled = _base(softmax.args[0])
    if scaled.target is not NATIVE.scale.default or _is_output(softmax):
        return None
    product = _base(scaled.args[0])
    if not _is_product(product):
        return None
    q, k = (_base(a) for a in product.args[:2])
    if not _is_permute(k, _LAST):
        return None
    parts = _parts(q)
    if parts is None or q is not parts[0] or _base(k.args[0]) is not parts[1]:
        return None
    qkv: Any = parts[0].args[0].args[0].args[0]
    _, tokens, three, heads, channels = qkv.meta["val"].shape
    sizes = {"scores": (tokens, tokens), "q": (tokens, channels), "k": (channels, tokens)}
    if three != 3 or not all(isinstance(size, int) for size in (tokens, heads, channels)):
        return None
    if (_last(product.args[0]), _last(product.args[1]), _last(softmax)) != (sizes["q"], sizes["k"], sizes["scores"]):
        return None
    for values in _users(softmax):
        if not _is_product(values) or _base(values.args[0]) is not softmax or _base(values.args[1]) is not parts[2]:
            continue
        if (_last(values.args[0]), _last(values.args[1])) != (sizes["scores"], sizes["q"]):
            continue
        for y in _users(values):
            if _is_permute(y, _HEADS) and y.meta["val"].shape[1:] == (tokens, heads, channels) and not _is_output(y):
                return _Found(qkv, parts, softmax, y, scaled.args[1])
    return None


def _are_gradients(found: _Found, stacked: Any, scores: fx.Node, dy: fx.Node) -> bool:
    """Whether ``stacked`` are the gradients of queries, keys and values."""
    if len(stacked) != 3 or not _is_permute(_base(stacked[1]), _LAST):
        return False
    dq, dk, dv = _base(stacked[0]), _base(_base(stacked[1]).args[0]), _base(stacked[2])
    if not (_is_product(dq, (False, True)) and _is_product(dk, (True, False)) and _is_product(dv, (True, False))):
        return False
    k = _base(dq.args[1])
    return (
        _base(dq.args[0]) is scores
        and _is_permute(k, _LAST)
        and _base(k.args[0]) is found.parts[1]
        and (_base(dk.args[0]), _base(dk.args[1])) == (found.parts[0], scores)
        and (_base(dv.args[0]), _base(dv.args[1])) == (found.weights, dy)
    )


def _parts(q: fx.Node) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """Queries, keys and values, where ``q`` is one of the three."""
    unbind: Any = q.args[0] if q.target is operator.getitem else None
    if unbind is None or unbind.target is not ATEN.unbind.int or (len(unbind.args) > 1 and unbind.args[1] != 0):
        return None
    if not _is_permute(unbind.args[0], _APART):
        return None
    found = {node.args[1]: node for node in unbind.users}
    return (found[0], found[1], found[2]) if set(found) == {0, 1, 2} else None


def _base(value: Any) -> Any:
    """The node of which ``value`` is a view; views here only join or part the leading dimensions."""
    while value.target is ATEN.reshape.default:
        value = value.args[0]
    return value


def _users(node: fx.Node) -> Iterator[fx.Node]:
    """Who reads ``node`` or a view of it."""
    for user in node.users:
        if user.target is ATEN.reshape.default:
            yield from _users(user)
        else:
            yield user


def _is_product(node: fx.Node, transposed: tuple[bool, bool] = (False, False)) -> bool:
    return node.target is NATIVE.matrix_product.default and node.args[2:] == transposed


def _is_permute(node: Any, order: list[int]) -> bool:
    return node.target is NATIVE.permute.default and list(node.args[1]) == order


def _is_output(node: fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _last(node: Any) -> tuple[Any, ...]:
    return tuple(node.meta["val"].shape[-2:])

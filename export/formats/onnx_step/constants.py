"""Values of a traced program that depend on no input and no batch size: position tables, masks, fixed indices."""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

MAX_ELEMENTS = 1 << 24
"""Larger values are not computed while exporting."""

Known: TypeAlias = Tensor | tuple[Tensor, ...]


class Constants:
    """Evaluates nodes of ``graph`` when they are asked for, each one once."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self._graph = graph
        self._known: dict[fx.Node, Known | None] = {}

    def value(self, node: fx.Node) -> Known | None:
        """What the node gives; None where it depends on an input, on the batch size or on chance."""
        pending = [node]
        while pending:
            current = pending[-1]
            unknown = [n for n in current.all_input_nodes if n not in self._known]
            if current in self._known:
                pending.pop()
            elif any(self._known.get(n, ()) is None for n in current.all_input_nodes):
                self._known[current] = None
            elif unknown:
                pending += unknown
            else:
                self._known[current] = self._evaluated(current)
        return self._known[node]

    def _evaluated(self, node: fx.Node) -> Known | None:
        if node.op == "get_attr":
            value = getattr(self._graph, str(node.target))
            return value.detach() if isinstance(value, Tensor) else None
        if node.op != "call_function" or not _is_pure(node.target):
            return None
        given = node.meta.get("val")
        sizes = [v.shape for v in (given if isinstance(given, list | tuple) else [given]) if isinstance(v, Tensor)]
        if any(not all(isinstance(s, int) for s in shape) or shape.numel() > MAX_ELEMENTS for shape in sizes):
            return None
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: self._known[n])
        target: Any = node.target
        with torch.no_grad():
            value = target(*args, **kwargs)
        if isinstance(value, Tensor):
            return value
        whole = isinstance(value, list | tuple) and all(isinstance(v, Tensor) for v in value)
        return tuple(value) if whole else None


def without_repeats(value: Tensor) -> Tensor:
    """``value`` with every dimension along which it does not change cut to size 1; it broadcasts back."""
    for dim, size in enumerate(value.shape):
        first = value.narrow(dim, 0, 1) if size > 1 else value
        if size > 1 and bool((value == first).all()):
            value = first
    return value.contiguous()


def _is_pure(target: Any) -> bool:
    if target is operator.getitem:
        return True
    schema = getattr(target, "_schema", None)
    drawn = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
    return schema is not None and not schema.is_mutable and not drawn

"""Aliases of a traced value, and views of it by strides: read as the value itself, or as a reshape of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

ATEN = torch.ops.aten


def drop_aliases(graph: fx.GraphModule) -> None:
    """Let users of a mere alias read the value itself, so that formats recognise patterns."""
    for node in list(graph.graph.nodes):
        if node.target in (torch.ops.prims.view_of.default, ATEN.detach.default, ATEN.alias.default):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
        elif node.target in (ATEN.as_strided.default, ATEN.as_strided_scatter.default):
            _drop_strides(graph, node)


def _drop_strides(graph: fx.GraphModule, node: fx.Node) -> None:
    """A reshape in place of a view, or a write, by strides that takes all elements in their order.

    Global average pooling of a channels-last image ends in such a view, see ``adaptive_avg_pool2d`` in ATen.
    """
    is_written = node.target is ATEN.as_strided_scatter.default
    whole, source = node.args[0], node.args[1 if is_written else 0]
    sizes, strides, *offset = node.args[2 if is_written else 1 :]
    value, given = whole.meta["val"], node.meta["val"]
    layout = [_expressions(v) for v in (sizes, strides)]
    known = [_expressions(v) for v in (value.shape, value.stride())]
    if any(offset) or value.storage_offset() != 0 or math.prod(layout[0]) != math.prod(known[0]):
        return
    if _steps(*layout) != _steps(*known) and not (_is_in_order(*layout) and _is_in_order(*known)):
        return
    if layout[0] != known[0]:
        shape = [size if isinstance(size, int) else -1 for size in given.shape]
        with graph.graph.inserting_before(node):
            source = graph.graph.call_function(ATEN.view.default, (source, shape))
        source.meta = dict(node.meta)
    node.replace_all_uses_with(source)
    graph.graph.erase_node(node)


def _expressions(values: Sequence[Any]) -> list[Any]:
    """Sizes as numbers and expressions: comparing those fixes no batch size."""
    plain = [v.meta["val"] if isinstance(v, fx.Node) else v for v in values]
    return [v.node.expr if isinstance(v, torch.SymInt) else v for v in plain]


def _steps(sizes: Sequence[Any], strides: Sequence[Any]) -> list[Any]:
    """Sizes with their strides; that of a dimension of size 1 is never used."""
    return [(size, None if size == 1 else stride) for size, stride in zip(sizes, strides, strict=True)]


def _is_in_order(sizes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether the elements lie in memory in the order in which they are counted, without gaps."""
    step = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step = step * size
    return True

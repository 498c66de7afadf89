"""How many bytes a traced program holds at once when it runs in the order in which it is written."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

ATEN = torch.ops.aten
ALIASES = {ATEN.view.default, ATEN._unsafe_view.default, ATEN.unsqueeze.default, ATEN.squeeze.dims, ATEN.expand.default}
"""Operations whose result takes no memory of its own."""


def value_bytes(node: fx.Node, batch: int) -> int:
    """Bytes of the tensor that ``node`` gives at one batch size; of several, of numbers and of aliases 0."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or node.target in ALIASES:
        return 0
    return math.prod(_number(size, batch) for size in value.shape) * value.element_size()


def peak_bytes(graph: fx.Graph, batch: int) -> int:
    """Most bytes of values between their computation and their last use; inputs are the caller's."""
    owners: dict[fx.Node, tuple[fx.Node, ...]] = {}
    last: dict[fx.Node, fx.Node] = {}
    nodes = list(graph.nodes)
    for node in nodes:
        shared = tuple(owner for argument in node.all_input_nodes for owner in owners.get(argument, (argument,)))
        if node.target in ALIASES:
            owners[node] = shared
        for owner in shared:
            last[owner] = node
    dying: dict[fx.Node, list[fx.Node]] = {}
    for owner, node in last.items():
        dying.setdefault(node, []).append(owner)
    live = peak = 0
    for node in nodes:
        if node.op != "call_function":
            continue
        if node in last or any(user.op == "output" for user in node.users):
            live += value_bytes(node, batch)
        peak = max(peak, live)
        live -= sum(value_bytes(owner, batch) for owner in dying.get(node, ()) if owner.op == "call_function")
    return peak


def _number(size: Any, batch: int) -> int:
    if not isinstance(size, torch.SymInt):
        return int(size)
    expression = size.node.expr
    return int(expression.xreplace({symbol: batch for symbol in expression.free_symbols}))

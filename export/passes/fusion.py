"""Operations that one kernel does with another: batch norm with its residual sum and its ReLU, and their gradients.

Works on the rewritten program, where the operators are the native ones. Each fusion saves passes over an activation's
memory; values and gradients stay what they were.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

import export.passes.kept_activations  # noqa: F401  registers operators
from export.passes.attention import join_attention
from export.passes.endings import join_endings
from export.passes.operators import NATIVE

_ADDEND, _RELU, _MASK = 3, 5, 5
"""Places among the arguments of ``batch_norm`` (both) and of ``batch_norm_backward``."""

_HALVES = {
    NATIVE.batch_norm_backward.default: (1, 5),
    NATIVE.relu_backward.default: (1,),
    NATIVE.add_relu_backward.default: (2,),
}
"""Operators -> places of arguments that may be float16."""


def fuse(graph: fx.Graph) -> None:
    """Join the operations of ``graph`` in place."""
    places = {node: place for place, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        if node.target is NATIVE.relu.default:
            _join_relu(node, places)
        elif node.target is NATIVE.batch_norm_backward.default:
            _join_mask(node)
    for node in list(graph.nodes):
        if node.target is NATIVE.relu_backward.default:
            _join_sum_of_gradients(graph, node)
    _read_as_kept(graph)
    join_attention(graph)
    join_endings(graph)
    graph.eliminate_dead_code()
    graph.lint()


def _join_relu(relu: fx.Node, places: dict[fx.Node, int]) -> None:
    """A ReLU of a batch norm, of a batch norm and a residual, or of another sum, where nothing else reads that."""
    before: Any = relu.args[0]
    if len(before.users) > 1 or any(user.op == "output" for user in relu.users):
        return
    if (norm := _norm_of(before)) is not None:
        _set(norm, _RELU, True)
    elif before.target is NATIVE.add.default and not before.args[2]:
        for value, addend in (before.args[:2], before.args[1::-1]):
            norm = _norm_of(value)
            # The sum is where the norm is, so what is added must be there already.
            if (
                norm is not None
                and len(value.users) == 1
                and places[addend] < places[norm]
                and norm.args[_ADDEND] is None
            ):
                _set(norm, _ADDEND, addend)
                _set(norm, _RELU, True)
                relu.replace_all_uses_with(value)
                return
        _set(before, 2, True)
    else:
        return
    relu.replace_all_uses_with(before)


def _norm_of(value: Any) -> fx.Node | None:
    """The batch norm whose output ``value`` is, if its ReLU is still to come."""
    if not isinstance(value, fx.Node) or value.target is not operator.getitem or value.args[1] != 0:
        return None
    norm: Any = value.args[0]
    return norm if norm.target is NATIVE.batch_norm.default and not norm.args[_RELU] else None


def _join_mask(backward: fx.Node) -> None:
    """The gradient of the ReLU before the batch norm's own."""
    masked: Any = backward.args[0]
    if masked.target is NATIVE.relu_backward.default and len(masked.users) == 1 and backward.args[_MASK] is None:
        gradient, y = masked.args
        _set(backward, 0, gradient)
        _set(backward, _MASK, y)


def _join_sum_of_gradients(graph: fx.Graph, masked: fx.Node) -> None:
    """Two gradients of a residual block's output, and its ReLU's mask."""
    total: Any = masked.args[0]
    if total.target is not NATIVE.add.default or total.args[2] or len(total.users) > 1:
        return
    with graph.inserting_before(masked):
        joined = graph.call_function(NATIVE.add_relu_backward.default, (total.args[0], total.args[1], masked.args[1]))
    joined.meta = dict(masked.meta)
    masked.replace_all_uses_with(joined)


def _read_as_kept(graph: fx.Graph) -> None:
    """Activations that wait in float16 read as they lie, by kernels that can."""
    for target, places in _HALVES.items():
        for node in graph.find_nodes(op="call_function", target=target):
            for place in places:
                value: Any = node.args[place]
                if isinstance(value, fx.Node) and value.target is NATIVE.widened.default:
                    _set(node, place, value.args[0])


def _set(node: fx.Node, place: int, value: Any) -> None:
    node.update_arg(place, value)

"""What follows a product or a layer norm's gradient, done where that is written: a GELU, its gradient, a residual sum.

Found in the rewritten program. The GELU's derivative is computed with the GELU and kept in place of its argument, so
that the backward pass multiplies and no more.
"""

# Legend: M rows, K depth, N columns.

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

import export.passes.activation_operators  # noqa: F401  registers operators
from export.passes.operators import NATIVE, define

ATEN = torch.ops.aten


def _linear_shape(x: Tensor, w: Tensor, *_: Any) -> Tensor:
    return x.new_empty((x.shape[0], w.shape[0]))


def _linear_gelu(x: Tensor, w: Tensor, b: Any) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w, b)
    return F.gelu(y), torch.ops.aten.gelu_backward(torch.ones_like(y), y)


define(
    "linear_gelu(Tensor x, Tensor w, Tensor? b)",
    2,
    lambda x, w, _b: (_linear_shape(x, w), _linear_shape(x, w)),
    _linear_gelu,
)
define(
    "linear_add(Tensor x, Tensor w, Tensor? b, Tensor addend)",
    1,
    _linear_shape,
    lambda x, w, b, addend: F.linear(x, w, b) + addend.reshape(x.shape[0], w.shape[0]),
)
define(
    "product_times(Tensor a, Tensor b, Tensor factors)",
    1,
    lambda a, b, _: a.new_empty((a.shape[0], b.shape[1])),
    lambda a, b, factors: a @ b * factors.reshape(a.shape[0], b.shape[1]),
)


def join_endings(graph: fx.Graph) -> None:
    """Join what follows into its product, in place."""
    for gelu in graph.find_nodes(op="call_function", target=NATIVE.gelu.default):
        _join_gelu(graph, gelu)
    for add in graph.find_nodes(op="call_function", target=NATIVE.add.default):
        _join_addend(graph, add)


def _join_gelu(graph: fx.Graph, gelu: fx.Node) -> None:
    linear = _base(gelu.args[0])
    if linear.target is not NATIVE.linear.default:
        return
    readers = _readers(linear)
    gradients = [node for node in readers if node is not gelu]
    if not gradients or readers.count(gelu) != 1 or any(_is_output(node) for node in readers):
        return  # a GELU that is not trained through needs no derivative, and what else reads its argument needs that
    if any(node.target is not NATIVE.gelu_backward.default or _base(node.args[1]) is not linear for node in gradients):
        return
    with graph.inserting_before(linear):
        joined = graph.call_function(NATIVE.linear_gelu.default, linear.args)
        y, slope = (graph.call_function(operator.getitem, (joined, i)) for i in (0, 1))
    for node in (y, slope):
        node.meta = dict(linear.meta)
    joined.meta = {**linear.meta, "val": (linear.meta["val"], linear.meta["val"])}
    for gradient in gradients:
        _join_slope(graph, gradient, slope)
    gelu.replace_all_uses_with(_shaped(graph, y, gelu.args[0], gelu))


def _join_slope(graph: fx.Graph, gradient: fx.Node, slope: fx.Node) -> None:
    """``gradient`` of a GELU as a product with its derivative, in the matrix product before it where that has no other
    reader."""
    product: Any = _base(gradient.args[0])
    with graph.inserting_before(gradient):
        is_alone = product.target is NATIVE.matrix_product.default and _readers(product) == [gradient]
        if is_alone and product.args[2:] == (False, False) and product.meta["val"].dim() == 2:
            joined = graph.call_function(NATIVE.product_times.default, (*product.args[:2], slope))
            joined.meta = dict(product.meta)
            joined = _shaped(graph, joined, gradient.args[0], gradient)
        else:
            factors = _shaped(graph, slope, gradient.args[1], gradient)
            joined = graph.call_function(NATIVE.multiply.default, (gradient.args[0], factors))
            joined.meta = dict(gradient.meta)
    gradient.replace_all_uses_with(joined)


def _join_addend(graph: fx.Graph, add: fx.Node) -> None:
    if add.args[2] or _is_output(add):
        return
    for value, addend in (add.args[:2], add.args[1::-1]):
        before: Any = _base(value)
        if _readers(before) != [add] or addend is value:
            continue
        if before.target is NATIVE.linear.default:
            kernel, arguments = NATIVE.linear_add.default, (*before.args, addend)
        elif before.target is NATIVE.layer_norm_backward.default:
            kernel, arguments = NATIVE.layer_norm_backward_add.default, (*before.args, addend)
        else:
            continue
        # Where the sum is: what is added may come after the product.
        with graph.inserting_before(add):
            joined = graph.call_function(kernel, arguments)
            joined.meta = dict(before.meta)
            add.replace_all_uses_with(_shaped(graph, joined, value, add))
        return


def _shaped(graph: fx.Graph, node: fx.Node, view: Any, instead: fx.Node) -> fx.Node:
    """``node`` in the shape of ``view``, which is a view of what it stands for, where ``instead`` is."""
    if view.target is not ATEN.reshape.default:
        return node
    with graph.inserting_before(instead):
        shaped = graph.call_function(ATEN.reshape.default, (node, view.args[1]))
    shaped.meta = dict(view.meta)
    return shaped


def _base(value: Any) -> Any:
    """The node of which ``value`` is a view."""
    while value.target is ATEN.reshape.default:
        value = value.args[0]
    return value


def _readers(node: fx.Node) -> list[fx.Node]:
    """Who reads ``node`` or a view of it, as often as they do."""
    found: list[fx.Node] = []
    for user in node.users:
        found += _readers(user) if user.target is ATEN.reshape.default else [user]
    return found


def _is_output(node: fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)

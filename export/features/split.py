"""A traced step in two: a program of what frozen layers give for an example, and the step that begins there.

Where to divide is read off the graph. What enters the first trained layer often has to be known at several places: a
block's shortcut reads what its first convolution reads. So the boundary is a value from which all that the rest of the
step reads can be computed, and of several the one that leaves the rest the fewest convolutions and products, and then
the smallest. A cut that ends inside a residual block thus divides in front of the block, whose frozen convolutions the
step goes on computing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from edge.contracts.tensors import BATCH, FEATURES, TensorSpec
from export.capture import Capture
from export.training_step import INPUT

ATEN = torch.ops.aten
_PRODUCTS = {ATEN.convolution.default, ATEN.mm.default, ATEN.addmm.default, ATEN.bmm.default}
_STATIC_NORM = ATEN._native_batch_norm_legit_no_training.default
_LAYERS = "apportion"
"""Namespace of the operations that stand for a whole recurrent layer."""


def split(program: Capture) -> tuple[Capture, Capture] | None:
    """The program that gives ``features`` [batch, ...], float32, and ``program`` with these in place of its input.

    None where frozen layers alone compute nothing of an example.
    """
    parts = _Parts(program)
    boundary = parts.boundary()
    return None if boundary is None else (parts.features(boundary), parts.step(boundary))


class _Parts:
    """The nodes of a step, by what they depend on."""

    def __init__(self, program: Capture) -> None:
        self._program = program
        self._nodes = list(program.graph.graph.nodes)
        places = [node for node in self._nodes if node.op == "placeholder"]
        self._specs = dict(zip(places, program.inputs, strict=True))
        self._x = next((node for node, spec in self._specs.items() if spec.name == INPUT), None)
        (output,) = program.graph.graph.find_nodes(op="output")
        self._results = dict(zip((*program.outputs, *program.hidden), output.args[0], strict=True))
        moved = {name.removeprefix("next:") for name in self._results if not self._is_passed_on(name)}
        self._fixed = {n for n, s in self._specs.items() if s.role in ("frozen", "buffer") and s.name not in moved}
        self._of_example: set[fx.Node] = set()
        """Nodes that depend on the input and on what never moves alone, the input among them."""
        if self._x is not None:
            self._of_example.add(self._x)
        for node in self._nodes:
            if node.op == "get_attr":
                self._fixed.add(node)
            elif node.op == "call_function" and not _is_size(node) and not _is_drawn(node):
                self._place(node)

    def _is_passed_on(self, output: str) -> bool:
        """Whether ``output`` is a state tensor as it came in: the statistics of a norm that does not move them."""
        spec = self._specs.get(self._results[output])
        return spec is not None and output == f"next:{spec.name}"

    def _place(self, node: fx.Node) -> None:
        parents = [n for n in node.all_input_nodes if not _is_size(n)]
        if any(n not in self._fixed and n not in self._of_example for n in parents):
            return
        if all(n in self._fixed for n in parents):
            self._fixed.add(node)
        elif _keeps_batch(node):  # else it is of the whole batch: a mean over it, a batch norm's statistics
            self._of_example.add(node)

    def boundary(self) -> fx.Node | None:
        """The value to divide at; None where there is none, or nothing worth a program below it."""
        if self._x is None:
            return None
        read = self._read_by_others()
        best: tuple[int, int, int] | None = None
        found = None
        for place, node in enumerate(self._nodes):
            if node is self._x or not self._is_candidate(node):
                continue
            again = self._computed_from(node, read)
            if again is None:
                continue
            worth = (_products(again), _elements(node), -place)
            if best is None or worth < best:
                best, found = worth, node
        return found if found is not None and _products(self._above(found)) else None

    def _read_by_others(self) -> set[fx.Node]:
        """Values of an example that the rest of the step reads as they are."""
        return {
            parent
            for node in self._nodes
            if node not in self._of_example and not self._is_batch_size(node)
            for parent in node.all_input_nodes
            if parent in self._of_example
        }

    def _computed_from(self, boundary: fx.Node, read: Iterable[fx.Node]) -> set[fx.Node] | None:
        """What is computed of ``boundary`` to give ``read``; None where the input itself is needed."""
        again, front = set[fx.Node](), list(read)
        while front:
            node = front.pop()
            if node is self._x:
                return None
            if node is boundary or node in again:
                continue
            again.add(node)
            for parent in node.all_input_nodes:
                if parent in self._of_example:
                    front.append(parent)
                elif _is_size(parent) and not self._is_batch_size(parent):
                    front += [n for n in parent.all_input_nodes if n in self._of_example]
        return again

    def _above(self, node: fx.Node) -> set[fx.Node]:
        """``node`` and everything that it is computed from."""
        above, front = set[fx.Node](), [node]
        while front:
            current = front.pop()
            if current not in above:
                above.add(current)
                front += [] if self._is_batch_size(current) else current.all_input_nodes
        return above

    def _is_candidate(self, node: fx.Node) -> bool:
        value = node.meta.get("val")
        if node not in self._of_example or not isinstance(value, Tensor) or value.dtype != torch.float32:
            return False
        return value.dim() > 1 and self._is_batch(value.shape[0]) and all(isinstance(s, int) for s in value.shape[1:])

    def _is_batch(self, size: Any) -> bool:
        assert self._x is not None
        whole = self._x.meta["val"].shape[0]
        return isinstance(size, torch.SymInt) and isinstance(whole, torch.SymInt) and size.node.expr == whole.node.expr

    def _is_batch_size(self, node: fx.Node) -> bool:
        return node.target is ATEN.sym_size.int and self._is_batch(node.meta.get("val"))

    def features(self, boundary: fx.Node) -> Capture:
        """The program that gives ``boundary`` as ``features``."""
        above = self._above(boundary)
        graph, copied = fx.Graph(), dict[fx.Node, fx.Node]()
        assert self._x is not None
        for node in self._nodes:
            if node in above and self._is_batch_size(node):
                copied[node] = graph.call_function(ATEN.sym_size.int, (copied[self._x], 0))
                copied[node].meta = dict(node.meta)
            elif node in above:
                copied[node] = graph.node_copy(node, copied.__getitem__)
        graph.output([copied[boundary]])
        inputs = tuple(spec for node, spec in self._specs.items() if node in above)
        return Capture(fx.GraphModule(self._program.graph, graph), inputs, (FEATURES,), ())

    def step(self, boundary: fx.Node) -> Capture:
        """The program without what only ``boundary`` is computed from."""
        again = self._computed_from(boundary, self._read_by_others())
        assert again is not None
        graph, copied, specs = fx.Graph(), dict[fx.Node, fx.Node](), dict[fx.Node, TensorSpec]()
        first = graph.placeholder(FEATURES)
        first.meta = {"val": boundary.meta["val"]}

        def of(node: fx.Node) -> fx.Node:
            return first if node is boundary else copied[node]

        for node in self._nodes:
            if node.op == "output":
                continue
            if node is self._x:  # features take its place among the inputs
                specs[first] = TensorSpec(FEATURES, (BATCH, *boundary.meta["val"].shape[1:]), "float32", "features")
            elif self._is_batch_size(node):
                copied[node] = graph.call_function(ATEN.sym_size.int, (first, 0))
                copied[node].meta = dict(node.meta)
            elif node in self._of_example and node not in again:
                continue
            else:
                copied[node] = graph.node_copy(node, of)
                if node in self._specs:
                    specs[copied[node]] = self._specs[node]
        outputs = tuple(name for name in self._program.outputs if not self._is_passed_on(name))
        graph.output([of(self._results[name]) for name in (*outputs, *self._program.hidden)])
        return _ordered(replace(self._program, outputs=outputs), graph, specs)


def _ordered(program: Capture, graph: fx.Graph, specs: dict[fx.Node, TensorSpec]) -> Capture:
    """The step in ``graph``, its placeholders in the order of ``specs`` and without those it no longer reads."""
    graph.eliminate_dead_code()
    places = program.graph.graph.find_nodes(op="placeholder")
    before = {spec.name: len(node.users) for node, spec in zip(places, program.inputs, strict=True)}
    anchor = next(node for node in graph.nodes if node.op != "placeholder")
    kept = []
    for node, spec in specs.items():
        if not node.users and before.get(spec.name):
            graph.erase_node(node)
            continue
        anchor.prepend(node)
        kept.append(spec)
    graph.lint()
    return replace(program, graph=fx.GraphModule(program.graph, graph), inputs=tuple(kept))


def _is_size(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymBool | int | bool)


def _is_drawn(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _keeps_batch(node: fx.Node) -> bool:
    """Whether everything that the operation gives has a size that follows the batch."""
    if node.target is _STATIC_NORM:  # which also gives the statistics it was given
        return True
    value: Any = node.meta.get("val")
    tensors = [v for v in (value if isinstance(value, list | tuple) else [value]) if isinstance(v, Tensor)]
    return all(any(isinstance(size, torch.SymInt) for size in tensor.shape) for tensor in tensors)


def _products(nodes: Iterable[fx.Node]) -> int:
    return sum(n.target in _PRODUCTS or getattr(n.target, "namespace", "") == _LAYERS for n in nodes)


def _elements(node: fx.Node) -> int:
    count = 1
    for size in node.meta["val"].shape[1:]:
        count *= int(size)
    return count

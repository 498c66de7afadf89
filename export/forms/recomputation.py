"""Forward values that are computed again in the backward pass instead of being kept: more time, less memory.

A training program keeps every forward value that its backward pass reads. Here only chosen ones stay; the others are
computed a second time, right before the backward pass first reads them, by the very operations that gave them, so that
every gradient keeps its bits. Running statistics move in the first computation alone. Of several choices the one with
the smallest peak is taken, as the format that asks measures it; the whole program is among them.
Source: Chen et al., "Training deep nets with sublinear memory cost", 2016: kept are values through which the whole
forward pass goes, such as the outputs of residual blocks, with as many segments between them as serves the memory best.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import fx

from export.capture import Capture
from export.value_lifetimes import ALIASES, value_bytes

ATEN = torch.ops.aten
RECOMPUTED = "recomputed"
"""Mark in the ``meta`` of operations that compute a value for the second time."""
_PRODUCTS = {ATEN.convolution.default, ATEN.mm.default, ATEN.addmm.default, ATEN.bmm.default}
"""Operations that take most of a step's time; one of the choices keeps their results."""
_SMALL_SHARE = 1 / 256
"""Forward values below this share of all bytes kept stay: nothing is gained by computing them again."""
_SEGMENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Into how many parts of about equal bytes a forward pass is cut."""


def recomputed(program: Capture, batch: int, peak: Callable[[Capture], int]) -> Capture:
    """The form of ``program`` with the smallest ``peak`` (bytes); ``program`` itself where none has less."""
    best, least, seen = program, peak(program), set[frozenset[str]]()
    for kept in _choices(program, batch):
        if kept in seen:
            continue
        seen.add(kept)
        candidate = keeping(program, kept, batch)
        if (found := peak(candidate)) < least:
            best, least = candidate, found
    return best


def keeping(program: Capture, kept: frozenset[str], batch: int) -> Capture:
    """``program`` that keeps, of its large forward values, those named in ``kept`` alone."""
    graph = copy.deepcopy(program.graph.graph)
    dropped = {node.name for node in _saved(program, batch)} - kept
    again = _Again(graph, _forward(graph, program), dropped)
    for node in list(graph.nodes):
        if node.op == "call_function" and node not in again.forward:
            again.feed(node)
    graph.eliminate_dead_code()
    return replace(program, graph=fx.GraphModule(program.graph, graph))


class _Again:
    """Second computations of forward values, each made where it is first read."""

    def __init__(self, graph: fx.Graph, forward: set[fx.Node], dropped: set[str]) -> None:
        self.forward = forward
        self._graph, self._dropped = graph, dropped
        self._made: dict[fx.Node, fx.Node] = {}
        self._lost: dict[fx.Node, bool] = {}

    def feed(self, reader: fx.Node) -> None:
        """Let ``reader``, of the backward pass, read second computations in place of values that are dropped."""
        for node in reader.all_input_nodes:
            if node in self.forward and self._is_lost(node):
                reader.replace_input_with(node, self._computed(node, reader))

    def _is_lost(self, node: fx.Node) -> bool:
        """Whether ``node`` is dropped, or an alias of what is."""
        if node not in self._lost:
            parents = [n for n in node.all_input_nodes if n in self.forward] if node.target in ALIASES else []
            self._lost[node] = node.name in self._dropped or any(self._is_lost(parent) for parent in parents)
        return self._lost[node]

    def _computed(self, node: fx.Node, before: fx.Node) -> fx.Node:
        """``node`` computed once more, and before it what it reads and is lost."""
        front = [node]
        while front:
            current = front[-1]
            missing = [n for n in current.all_input_nodes if self._needs_copy(n, current)]
            if missing:
                front += missing
                continue
            front.pop()
            if current not in self._made:
                self._made[current] = self._copied(current, before)
        return self._made[node]

    def _needs_copy(self, node: fx.Node, reader: fx.Node) -> bool:
        if node not in self.forward or node in self._made:
            return False
        return (
            reader.target is operator.getitem or self._is_lost(node) or isinstance(node.meta.get("val"), tuple | list)
        )

    def _copied(self, node: fx.Node, before: fx.Node) -> fx.Node:
        with self._graph.inserting_before(before):
            made = self._graph.node_copy(node, lambda n: self._made.get(n, n))
        made.meta = {**node.meta, RECOMPUTED: True}
        if node.target is ATEN._native_batch_norm_legit_functional.default and node.args[5]:
            # The same values, and no second move of the running statistics.
            made.target = ATEN._native_batch_norm_legit.no_stats
            made.args = (*made.args[:3], *made.args[5:])
            made.meta["val"] = tuple(node.meta["val"][:3])
        return made


def _forward(graph: fx.Graph, program: Capture) -> set[fx.Node]:
    """The operations that loss and metrics are computed from."""
    (output,) = graph.find_nodes(op="output")
    front = [output.args[0][program.outputs.index(name)] for name in ("loss", "correct") if name in program.outputs]
    found: set[fx.Node] = set()
    while front:
        node = front.pop()
        if node not in found and node.op == "call_function":
            found.add(node)
            front += node.all_input_nodes
    return found


def _saved(program: Capture, batch: int) -> list[fx.Node]:
    """Large values of the forward pass, in its order; those that only pass through it are among them."""
    forward = _forward(program.graph.graph, program)
    sizes = {node: value_bytes(node, batch) for node in program.graph.graph.nodes if node in forward}
    least = _SMALL_SHARE * sum(size for node, size in sizes.items() if _is_read_backward(node, forward))
    return [node for node, size in sizes.items() if size > least]


def _is_read_backward(node: fx.Node, forward: set[fx.Node]) -> bool:
    return any(user not in forward and user.op == "call_function" for user in node.users)


def _choices(program: Capture, batch: int) -> Iterator[frozenset[str]]:
    """Names of values to keep, choice by choice."""
    saved = _saved(program, batch)
    forward = _forward(program.graph.graph, program)
    yield frozenset(node.name for node in saved if node.target in _PRODUCTS)
    gates = [node for node in _gates(saved, forward) if _is_read_backward(node, forward)]
    total = sum(value_bytes(node, batch) for node in saved)
    for segments in _SEGMENTS:
        yield frozenset(_every(gates, saved, total / segments, batch))


def _gates(saved: list[fx.Node], forward: set[fx.Node]) -> Iterator[fx.Node]:
    """Values through which everything goes: behind one, no other large value is left for the forward pass to read."""
    if not saved:
        return
    order = {node: i for i, node in enumerate(saved[0].graph.nodes)}
    reach = -1
    for node in saved:
        if reach <= order[node]:
            yield node
        reach = max([reach, *(order[reader] for reader in _readers(node, forward))])


def _readers(node: fx.Node, forward: set[fx.Node]) -> Iterator[fx.Node]:
    """Operations of the forward pass that read ``node``, or a part or an alias of it."""
    for user in node.users:
        if user in forward:
            yield user
            if value_bytes(user, 1) == 0:
                yield from _readers(user, forward)


def _every(gates: list[fx.Node], saved: list[fx.Node], size: float, batch: int) -> Iterator[str]:
    """Gates behind which at least ``size`` bytes have come since the one before."""
    passed, choice = 0, set(gates)
    for node in saved:
        passed += value_bytes(node, batch)
        if node in choice and passed >= size:
            passed = 0
            yield node.name

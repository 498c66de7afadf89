"""What a written step takes: the peak of its values, exactly, and beside it what the runtime and the mapping add."""

from __future__ import annotations

from collections.abc import Iterable

from edge.contracts.tensors import STATE_ROLES, TensorSpec
from export.formats.onnx_language.graph import StepGraph
from export.memory_plan import MemoryPlan


def live_values(graph: StepGraph) -> list[tuple[str, int]]:
    """(Node, bytes of values that exist while it runs) of every node, in their order.

    Neither inputs nor outputs, whose buffers are the session's. Nothing shares bytes: reuse of buffers is off.
    """
    order = graph.order
    last = {name: number for number, node in enumerate(order) for name in (*node.inputs, *node.outputs)}
    outside = {*graph.inputs, *graph.outputs}
    alive: dict[str, int] = {}
    found = []
    for number, node in enumerate(order):
        alive |= {name: graph.byte_count(name) for name in node.outputs if name not in outside}
        found.append((node.name, sum(alive.values())))
        for name in (*node.inputs, *node.outputs):
            if last[name] == number:
                alive.pop(name, None)
    return found


def memory_of(graphs: Iterable[StepGraph], tensors: Iterable[TensorSpec], batch: int) -> MemoryPlan:
    """The plan of a step that runs ``graphs``, one after the other; the base is mapped and counts nothing.

    Args:
        batch: examples of the whole step.
    """
    known = list(graphs)
    carried = [spec for spec in tensors if spec.role in STATE_ROLES]
    written = {spec.name: spec for graph in known for spec in graph.outputs.values() if spec.role in STATE_ROLES}
    node, peak = max((item for graph in known for item in live_values(graph)), key=lambda item: item[1])
    return MemoryPlan(
        state=sum(spec.byte_count() for spec in carried),
        written=sum(spec.byte_count() for spec in written.values()),
        batch=sum(s.byte_count(batch) for s in tensors if s.role in ("input", "target", "rows")),
        intermediate=peak + max(graph.constant_bytes for graph in known),
        peak_node=node,
        nodes=sum(len(graph.order) for graph in known),
    )


def product_macs(graph: StepGraph) -> int:
    """Multiply-accumulates of the graph's matrix products at its batch."""
    total = 0
    for node in graph.order:
        if node.kind in ("Gemm", "FusedMatMul"):
            left, out = graph.shapes[node.inputs[0]], graph.shapes[node.outputs[0]]
            outside = _elements(out) // out[-1]
            total += _elements(out) * (_elements(left) // outside)
    return total


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count

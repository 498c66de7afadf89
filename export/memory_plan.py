"""How much memory a training graph holds at once, from the lifetimes of its values in execution order.

Counts what any executor must hold: the state twice (values are read while their successors are written, see
``edge.runtimes``) but for what a graph may write over, the batch, and the intermediate values between their production
and their last use. What a runtime adds (packing buffers, fragmentation, its own code) is measured per runtime, not
guessed here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto, shape_inference

from edge.contracts.tensors import STATE_ROLES, TensorSpec

_BYTES = {
    TensorProto.FLOAT: 4, TensorProto.FLOAT16: 2, TensorProto.DOUBLE: 8, TensorProto.INT64: 8, TensorProto.INT32: 4,
    TensorProto.BOOL: 1,
}  # fmt: skip
_ALIAS = {"Reshape", "Squeeze", "Unsqueeze", "Identity", "Flatten"}
"""Operators whose output shares the bytes of its first input."""
REUSING = frozenset({
    "Add", "Sub", "Mul", "Div", "Relu", "Sigmoid", "Tanh", "Exp", "Neg", "Sqrt", "Clip", "Where", "HardSigmoid",
    "HardSwish", "Softmax", "LogSoftmax", "Erf", "Reciprocal", "Softplus", "Abs", "Max", "Min",
})  # fmt: skip
"""Operators that may write over an input of equal size that nothing reads afterwards, where a runtime plans so."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes held during one step.

    Attributes:
        state: parameters, frozen ones included, slots, buffers, accumulators; one copy.
        written: the part of the state that the step writes and that exists twice.
        batch: inputs that are not state.
        intermediate: peak of values that live only inside the step.
        peak_node: the node at which that peak is reached.
        nodes: nodes of the graph.
    """

    state: int
    written: int
    batch: int
    intermediate: int
    peak_node: str
    nodes: int = 0

    @property
    def live(self) -> int:
        """Peak of all live tensors."""
        return self.state + self.written + self.batch + self.intermediate


def memory_plan(
    model: onnx.ModelProto,
    tensors: Iterable[TensorSpec],
    batch: int,
    *,
    in_place: Collection[str] = (),
    reusing: Collection[str] = (),
) -> MemoryPlan:
    """The plan of a training graph at one batch size, in the order its nodes are in.

    Args:
        in_place: state that the graph writes over, so that it is held once.
        reusing: as of :func:`intermediate_peak`.
    """
    specs = {spec.name: spec for spec in tensors}
    inputs = [value.name for value in model.graph.input]
    outputs = {value.name for value in model.graph.output}
    state = sum(specs[n].byte_count(batch) for n in inputs if specs[n].role in STATE_ROLES)
    written = sum(
        specs[name].byte_count(batch)
        for name in (n.removeprefix("next:") for n in outputs if n.startswith("next:"))
        if name not in in_place
    )
    fed = sum(specs[n].byte_count(batch) for n in inputs if specs[n].role not in STATE_ROLES)
    peak, node = intermediate_peak(model, batch, reusing=reusing)
    return MemoryPlan(state, written, fed, peak, node, len(model.graph.node))


def intermediate_peak(
    model: onnx.ModelProto,
    batch: int,
    *,
    sizes: Mapping[str, int] | None = None,
    reusing: Collection[str] = (),
) -> tuple[int, str]:
    """Peak bytes of values that are neither graph inputs, outputs nor constants, and the node it is reached at.

    Args:
        sizes: bytes of values, for graphs with operators whose shapes are not ONNX's to infer.
        reusing: operators that write over an input of equal size which nothing reads afterwards.
    """
    sizes = value_bytes(model, batch) if sizes is None else sizes
    external = {v.name for v in model.graph.input} | {v.name for v in model.graph.output}
    external |= {c.name for c in model.graph.initializer}
    owner: dict[str, str] = {}
    last_use: dict[str, int] = {}
    for i, node in enumerate(model.graph.node):
        for name in node.input:
            if name:
                last_use[owner.get(name, name)] = i
        for j, name in enumerate(node.output):
            shares = node.op_type in _ALIAS and j == 0
            owner[name] = owner.get(node.input[0], node.input[0]) if shares else name
            last_use.setdefault(owner[name], i)
    live, peak, where = 0, 0, ""
    alive: dict[str, int] = {}
    for i, node in enumerate(model.graph.node):
        dying = {owner.get(n, n) for n in node.input if n and last_use.get(owner.get(n, n)) == i}
        for name in node.output:
            if not name or name in external or owner[name] != name or name in alive:
                continue
            size = sizes.get(name, 0)
            reused = next((d for d in dying if node.op_type in reusing and alive.get(d, -1) == size > 0), None)
            if reused is not None:
                live -= alive.pop(reused)
                dying.discard(reused)
            alive[name] = size
            live += size
        if live > peak:
            peak, where = live, node.name
        for name in (*dying, *(n for n in node.output if last_use.get(owner.get(n, n)) == i)):
            live -= alive.pop(name, 0)
    return peak, where


def value_bytes(model: onnx.ModelProto, batch: int) -> dict[str, int]:
    """Bytes of every value of the graph at one batch size; values of unknown shape are left out."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in (*fixed.graph.input, *fixed.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "batch":
                dim.Clear()
                dim.dim_value = batch
    inferred = shape_inference.infer_shapes(fixed, data_prop=True)
    sizes = {}
    for value in (*inferred.graph.value_info, *inferred.graph.output):
        tensor = value.type.tensor_type
        dims = [d.dim_value for d in tensor.shape.dim if d.HasField("dim_value")]
        if tensor.HasField("shape") and len(dims) == len(tensor.shape.dim):
            sizes[value.name] = math.prod(dims) * _BYTES.get(tensor.elem_type, 4)
    return sizes

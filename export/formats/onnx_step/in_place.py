"""Which state tensors a step may write over, and an order of operations in which it may for large weights, too.

ONNX Runtime chooses the order of independent operations itself, and an update that comes before the backward pass has
read the old weight corrupts training without a word (measured). So nothing is assumed about the order: a tensor is
written in place only where every operation that reads it is needed for its new value. The optimizer's slots are so by
themselves. A weight is not, since the gradient of the layer before reads it, too: there the learning rate is made to
wait for that gradient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from export.formats.onnx_step.execution_order import inserted
from export.program_inputs import NEXT

_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "Where"})
"""Each entry of the result is written after the same entry of every operand was read."""
_NEW_VALUE = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Sqrt", "Reciprocal"})
"""Never a view of an operand, whatever the runtime makes of the graph; all others may be one, a product by 1 too."""


def written_in_place(model: onnx.ModelProto) -> tuple[str, ...]:
    """Inputs X of the graph whose output ``next:X`` may have X's memory in any order of execution."""
    reads = _Reads(model)
    names = [value.name for value in model.graph.input]
    return tuple(name for name in names if reads.writes(name) and not reads.unordered(name))


def updated_last(model: onnx.ModelProto, large: frozenset[str]) -> onnx.ModelProto:
    """``model``, in which weights of ``large`` that only their own layer's backward pass reads late are written last.

    The rule is w - rate * direction, with a rank-0 rate. The rate goes through a choice between zero and itself that
    always gives itself, and whose condition reads one entry of every result that needs the old weight.
    """
    reads, ranks = _Reads(model), _ranks(model)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    nodes = list(changed.graph.node)
    new: dict[int, list[onnx.NodeProto]] = defaultdict(list)
    for name in sorted(large):
        if not reads.writes(name):
            continue
        late, place = reads.last_of(reads.unordered(name)), reads.rate_of(name, ranks)
        if not late or place is None or any(i < 0 or not ranks.get(nodes[i].output[0]) for i in late):
            continue
        product, operand = place
        rate = nodes[product].input[operand]
        for i in late:
            made, rate = _waiting(rate, nodes[i].output[0], ranks[nodes[i].output[0]], f"/{name}/after{i}")
            new[product] += made
        nodes[product].input[operand] = rate
    if new:
        inserted(changed, nodes, new)
    return changed


class _Reads:
    """Who reads what in a graph."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._nodes = list(model.graph.node)
        self._outputs = {value.name for value in model.graph.output}
        self._constants = {value.name for value in model.graph.initializer}
        for node in self._nodes:
            if self._constants.issuperset(node.input):
                self._constants.update(node.output)
        self._producer = {name: i for i, node in enumerate(self._nodes) for name in node.output if name}
        self._readers: dict[str, list[int]] = defaultdict(list)
        for i, node in enumerate(self._nodes):
            for name in dict.fromkeys(node.input):
                self._readers[name].append(i)

    def writes(self, name: str) -> bool:
        """Whether the graph gives a new value of input ``name`` entry by entry."""
        writer = self._producer.get(NEXT + name)
        return writer is not None and self._nodes[writer].op_type in _ELEMENTWISE

    def unordered(self, name: str) -> tuple[int, ...]:
        """Nodes that may read input ``name`` after its new value is written; -1 for whoever reads the outputs."""
        writer = self._producer[NEXT + name]
        before = self._before(writer)
        return tuple(sorted({i for i in self._all_readers(name) if i != writer and i not in before}))

    def last_of(self, nodes: tuple[int, ...]) -> tuple[int, ...]:
        """Those of ``nodes`` that no other of them needs."""
        needed = set[int]().union(*(self._before(i) for i in nodes if i >= 0))
        return tuple(i for i in nodes if i not in needed)

    def rate_of(self, name: str, ranks: dict[str, int]) -> tuple[int, int] | None:
        """Node and operand of the rate in w - rate * direction; None where the update has another form."""
        update = self._nodes[self._producer[NEXT + name]]
        product = self._producer.get(update.input[1]) if update.op_type == "Sub" and update.input[0] == name else None
        if product is None or self._nodes[product].op_type != "Mul" or len(self._readers[update.input[1]]) > 1:
            return None
        rates = [k for k, operand in enumerate(self._nodes[product].input) if ranks.get(operand) == 0]
        return (product, rates[0]) if rates else None

    def _before(self, node: int) -> set[int]:
        found, stack = set[int](), [node]
        while stack:
            for name in self._nodes[stack.pop()].input:
                operand = self._producer.get(name)
                if operand is not None and operand not in found:
                    found.add(operand)
                    stack.append(operand)
        return found

    def _all_readers(self, name: str) -> Iterator[int]:
        """Nodes that read input ``name``, or what may be a view of it."""
        names, seen = [name], {name}
        while names:
            held = names.pop()
            if held in self._outputs:
                yield -1
            for i in self._readers[held]:
                node = self._nodes[i]
                yield i
                if node.op_type in _NEW_VALUE or (node.op_type in _ELEMENTWISE and not self._constants & {*node.input}):
                    continue
                names += [output for output in node.output if output not in seen]
                seen.update(node.output)


def _ranks(model: onnx.ModelProto) -> dict[str, int]:
    graph = shape_inference.infer_shapes(model).graph
    values = (*graph.value_info, *graph.input, *graph.output)
    return {v.name: len(v.type.tensor_type.shape.dim) for v in values if v.type.tensor_type.HasField("shape")}


def _waiting(rate: str, read: str, rank: int, name: str) -> tuple[list[onnx.NodeProto], str]:
    """Nodes that give ``rate`` once the value ``read`` is there, and its name."""
    made = [
        _constant(f"{name}/0", np.zeros(rank, np.int64)),
        _constant(f"{name}/1", np.ones(rank, np.int64)),
        helper.make_node("Slice", [read, f"{name}/0", f"{name}/1"], [f"{name}/entry"], name=f"{name}/entry"),
        _constant(f"{name}/scalar", np.zeros(0, np.int64)),
        helper.make_node("Reshape", [f"{name}/entry", f"{name}/scalar"], [f"{name}/one"], name=f"{name}/one"),
        helper.make_node("Greater", [f"{name}/one", f"{name}/one"], [f"{name}/never"], name=f"{name}/never"),
        _constant(f"{name}/zero", np.zeros((), np.float32)),
        helper.make_node("Where", [f"{name}/never", f"{name}/zero", rate], [f"{name}/rate"], name=f"{name}/rate"),
    ]
    return made, f"{name}/rate"


def _constant(name: str, value: np.ndarray) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], name=name, value=numpy_helper.from_array(value))

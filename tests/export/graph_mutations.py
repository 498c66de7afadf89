"""Training graphs with one fault each: what a wrong exporter would write, for the gate to refuse.

A fault is put into a graph's bytes at a layer near the input, in the middle or near the output, and changes no shape:
the graph loads, runs and trains. Faults are those of the exporter's own history and of its kind: a term of a gradient
left out, an axis mistaken, state that does not move, a sign, two weights taken for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx
from onnx import GraphProto, ModelProto, NodeProto, helper

PLACES = (0.1, 0.5, 0.9)
"""Where in the list of a fault's possible places it is put."""


def mutations(model: bytes) -> Iterator[tuple[str, bytes]]:
    """(name of the fault and its place, the graph with it), for every fault that the graph has a place for."""
    for name, places in FAULTS.items():
        count = len(places(_Graph(model)))
        for index in sorted({int(share * count) for share in PLACES} if count else ()):
            graph = _Graph(model)
            apply = places(graph)[index]
            where = apply()
            yield f"{name} at {where}", graph.bytes()


class _Graph:
    """A model with what faults ask of it; nodes may be added at the end and are sorted when it is written."""

    def __init__(self, model: bytes) -> None:
        self._model: ModelProto = onnx.load_from_string(model)
        self.graph: GraphProto = self._model.graph
        self.producer = {output: node for node in self.graph.node for output in node.output}
        self.constants = {item.name for item in self.graph.initializer}
        self.inputs = {item.name: item for item in self.graph.input}

    def shape(self, name: str) -> list[int]:
        """Sizes of a graph input; 0 for the batch."""
        return [dim.dim_value for dim in self.inputs[name].type.tensor_type.shape.dim]

    def ancestors(self, names: Sequence[str]) -> list[NodeProto]:
        """Nodes that ``names`` depend on, in graph order."""
        wanted, front = set[int](), list(names)
        while front:
            node = self.producer.get(front.pop())
            if node is not None and id(node) not in wanted:
                wanted.add(id(node))
                front.extend(node.input)
        return [node for node in self.graph.node if id(node) in wanted]

    @property
    def gradients(self) -> list[str]:
        """Names of the gradients, as the exporter gives them."""
        return [name for name in self.producer if name.startswith("grad:")]

    @property
    def backward(self) -> list[NodeProto]:
        """Nodes of the backward pass, in graph order."""
        forward = {id(node) for node in self.ancestors(["loss", "correct"])}
        return [node for node in self.ancestors(self.gradients) if id(node) not in forward]

    def replace(self, node: NodeProto, kind: str, inputs: Sequence[str]) -> None:
        """Make ``node`` another operation with the same output."""
        output = node.output[0]
        node.CopyFrom(helper.make_node(kind, list(inputs), [output]))

    def wrap(self, name: str, kind: str, *more: str, **attributes: object) -> None:
        """Let everything that reads the value ``name`` read ``kind(name, *more)`` in its place."""
        node = self.producer[name]
        raw = f"{name}~raw"
        node.output[list(node.output).index(name)] = raw
        self.graph.node.append(helper.make_node(kind, [raw, *more], [name], **attributes))

    def constant(self, value: float) -> str:
        """Name of a new float scalar."""
        name = f"~{len(self.graph.initializer)}"
        self.graph.initializer.append(helper.make_tensor(name, onnx.TensorProto.FLOAT, [], [value]))
        return name

    def bytes(self) -> bytes:
        """The model, its nodes in an order in which they can run."""
        known = {"", *self.inputs, *(item.name for item in self.graph.initializer)}
        waiting, ordered = list(self.graph.node), list[NodeProto]()
        while waiting:
            ready = [node for node in waiting if known.issuperset(node.input)]
            assert ready, "the fault made a circle"
            known.update(output for node in ready for output in node.output)
            ordered += ready
            left = {id(node) for node in ready}
            waiting = [node for node in waiting if id(node) not in left]
        del self.graph.node[:]
        self.graph.node.extend(ordered)
        return bytes(self._model.SerializeToString())


Place = Callable[[], str]


def _dropped_terms(graph: _Graph) -> list[Place]:
    """A sum of two terms in the backward pass loses its second."""
    sums = [n for n in graph.backward if n.op_type == "Add" and not graph.constants & set(n.input)]

    def fault(node: NodeProto) -> str:
        # Through a product with 0, which keeps the shape that the two terms have together.
        zero = graph.constant(0.0)
        graph.graph.node.append(helper.make_node("Mul", [node.input[1], zero], [f"{node.output[0]}~none"]))
        node.input[1] = f"{node.output[0]}~none"
        return str(node.output[0])

    return [lambda n=n: fault(n) for n in sums]  # type: ignore[misc]


def _wrong_axes(graph: _Graph) -> list[Place]:
    """A weight with two equal last sizes is read with those axes exchanged in the backward pass."""
    weights = {n for n in graph.inputs if len(shape := graph.shape(n)) >= 2 and shape[-1] == shape[-2] > 1}
    readers = [(node, i) for node in graph.backward for i, name in enumerate(node.input) if name in weights]

    def fault(node: NodeProto, index: int) -> str:
        name = str(node.input[index])
        axes = list(range(len(graph.shape(name))))
        axes[-2:] = axes[-1], axes[-2]
        graph.graph.node.append(helper.make_node("Transpose", [name], [f"{name}~turned"], perm=axes))
        node.input[index] = f"{name}~turned"
        return name

    return [lambda n=n, i=i: fault(n, i) for n, i in readers]  # type: ignore[misc]


def _stale_buffers(graph: _Graph) -> list[Place]:
    """A running statistic comes out as it went in."""
    names = [n.removeprefix("next:") for n in graph.producer if n.startswith("next:") and "running_" in n]
    return [lambda n=n: _set_still(graph, n) for n in names]  # type: ignore[misc]


def _stale_parameters(graph: _Graph) -> list[Place]:
    """A parameter comes out as it went in."""
    names = [name.removeprefix("grad:") for name in graph.gradients]
    return [lambda n=n: _set_still(graph, n) for n in names]  # type: ignore[misc]


def _set_still(graph: _Graph, name: str) -> str:
    graph.replace(graph.producer[f"next:{name}"], "Identity", [name])
    return name


def _momentum_not_carried(graph: _Graph) -> list[Place]:
    """A step reads zeros in place of the last one's momentum."""
    slots = [name for name in graph.inputs if name.endswith("#momentum")]

    def fault(slot: str) -> str:
        zero = graph.constant(0.0)
        for node in graph.graph.node:
            for index, name in enumerate(node.input):
                if name == slot:
                    node.input[index] = f"{slot}~zero"
        graph.graph.node.append(helper.make_node("Mul", [slot, zero], [f"{slot}~zero"]))
        return slot

    return [lambda s=s: fault(s) for s in slots]  # type: ignore[misc]


def _signs(graph: _Graph) -> list[Place]:
    """A gradient has the wrong sign."""

    def fault(name: str) -> str:
        graph.wrap(name, "Neg")
        return name

    return [lambda n=n: fault(n) for n in graph.gradients]  # type: ignore[misc]


def _signs_inside(graph: _Graph) -> list[Place]:
    """A difference in the backward pass is a sum."""

    def fault(node: NodeProto) -> str:
        node.op_type = "Add"
        return str(node.output[0])

    return [lambda n=n: fault(n) for n in graph.backward if n.op_type == "Sub"]  # type: ignore[misc]


def _swapped_weights(graph: _Graph) -> list[Place]:
    """Two weights of one shape are taken for each other."""
    trained = [name.removeprefix("grad:") for name in graph.gradients]
    pairs = [(a, b) for i, a in enumerate(trained) for b in trained[i + 1 :] if graph.shape(a) == graph.shape(b)]
    firsts = {a: (a, b) for a, b in reversed(pairs)}

    def fault(a: str, b: str) -> str:
        other = {a: b, b: a}
        forward = {id(node) for node in graph.ancestors(["loss"])}
        for node in graph.graph.node:
            if id(node) in forward:
                for index, name in enumerate(node.input):
                    node.input[index] = other.get(name, name)
        return f"{a} and {b}"

    return [lambda p=p: fault(*p) for p in firsts.values()]  # type: ignore[misc]


def _scaled_gradients(graph: _Graph) -> list[Place]:
    """A gradient is two per cent too small."""

    def fault(name: str) -> str:
        graph.wrap(name, "Mul", graph.constant(0.98))
        return name

    return [lambda n=n: fault(n) for n in graph.gradients]  # type: ignore[misc]


def _missing_decay(graph: _Graph) -> list[Place]:
    """A parameter does not decay."""
    nodes = [n for n in graph.graph.node if n.op_type == "Mul" and n.input[0] == "weight_decay"]

    def fault(node: NodeProto) -> str:
        decayed = node.input[1]
        node.input[0] = graph.constant(0.0)
        return str(decayed)

    return [lambda n=n: fault(n) for n in nodes]  # type: ignore[misc]


def _missing_masks(graph: _Graph) -> list[Place]:
    """A rectifier's gradient passes where the rectifier is 0."""
    masks = {n.output[0] for n in graph.backward if n.op_type == "HardSigmoid"}  # a very steep one
    masked = [n for n in graph.backward if n.op_type == "Mul" and masks & set(n.input)]

    def fault(node: NodeProto) -> str:
        kept = next(name for name in node.input if name not in masks)
        graph.replace(node, "Identity", [kept])
        return str(node.output[0])

    return [lambda n=n: fault(n) for n in masked]  # type: ignore[misc]


FAULTS: dict[str, Callable[[_Graph], list[Place]]] = {
    "a dropped gradient term": _dropped_terms,
    "a wrong axis": _wrong_axes,
    "a stale buffer": _stale_buffers,
    "a stale parameter": _stale_parameters,
    "momentum not carried": _momentum_not_carried,
    "a gradient's sign": _signs,
    "a sign inside": _signs_inside,
    "a swapped weight": _swapped_weights,
    "a gradient 2 % too small": _scaled_gradients,
    "missing decay": _missing_decay,
    "a rectifier's mask missing": _missing_masks,
}
"""Name -> the places of a graph that such a fault can be put at."""

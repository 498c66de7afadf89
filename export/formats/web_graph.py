"""Rewrites of a step's graph for ONNX Runtime's WebAssembly build, each measured there.

That build's own kernels have no vectors but where the compiler made some: it did not where a result takes the place of
its operand, as those of ``Relu`` and ``HardSigmoid`` do, nor in reductions over several axes. Source: measured,
docs/measurements/2026-11-20-web.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

_STEP_SLOPE = 1e38
"""From this slope on HardSigmoid is a step at 0."""

_FUSED = frozenset({"Conv", "Gemm", "MatMul"})
"""Producers that the runtime computes a rectifier with."""

_SAME_SIGN = frozenset({"Reshape", "Flatten", "Identity", "MaxPool", "Transpose", "Slice"})
"""Values are the input's."""

_PER_CHANNEL = (0, 2, 3)
_ZERO = "web:zero"


def for_web(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of ``model`` that computes the same by cheaper kernels."""
    rewritten = onnx.ModelProto()
    rewritten.CopyFrom(model)
    graph = _Graph(rewritten)
    nodes = [new for node in model.graph.node for new in graph.rewritten(node)]
    del rewritten.graph.node[:]
    rewritten.graph.node.extend(nodes)
    rewritten.graph.initializer.extend(graph.added.values())
    return rewritten


class _Graph:
    """What a node's rewrite asks of the graph about it."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.added: dict[str, onnx.TensorProto] = {}
        self._producer = {name: node for node in model.graph.node for name in node.output}
        self._constants = {tensor.name: tensor for tensor in model.graph.initializer}
        inferred = shape_inference.infer_shapes(model).graph
        values = (*inferred.value_info, *inferred.input, *inferred.output)
        self._shapes = {value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in values}

    def rewritten(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """The nodes that take the place of ``node``."""
        if node.op_type == "Relu" and self._kind(node.input[0]) not in _FUSED:
            yield self._like(node, "Max", [node.input[0], self._constant(_ZERO, 0.0)])
        elif node.op_type == "HardSigmoid" and self._is_step(node):
            yield self._like(node, "Sign", list(node.input))
        elif node.op_type in ("ReduceMean", "ReduceSum") and self._is_per_channel(node):
            yield from self._by_planes(node)
        else:
            yield node

    def _kind(self, name: str) -> str:
        return self._producer[name].op_type if name in self._producer else ""

    def _is_step(self, node: onnx.NodeProto) -> bool:
        """Whether the result is 1 above 0, the operand never being below."""
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        name = node.input[0]
        while self._kind(name) in _SAME_SIGN:
            name = self._producer[name].input[0]
        return given.get("alpha", 0.0) >= _STEP_SLOPE and given.get("beta") == 0.0 and self._kind(name) == "Relu"

    def _is_per_channel(self, node: onnx.NodeProto) -> bool:
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        axes = self._constants.get(node.input[1]) if len(node.input) > 1 else None
        if axes is None or given.get("keepdims", 1) != 0 or tuple(numpy_helper.to_array(axes)) != _PER_CHANNEL:
            return False
        shape = self._shapes.get(node.input[0], [])
        return len(shape) == len(_PER_CHANNEL) + 1 and min(shape[2:]) > 0

    def _by_planes(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Every plane's mean, by a kernel that has vectors; then over the batch, which is little."""
        means, total = f"{node.output[0]}:planes", f"{node.output[0]}:total"
        height, width = self._shapes[node.input[0]][2:]
        yield helper.make_node("GlobalAveragePool", [node.input[0]], [means], name=f"{node.name}:planes")
        if node.op_type == "ReduceMean" or height * width == 1:
            yield self._like(node, node.op_type, [means, node.input[1]])
            return
        size = self._constant(f"web:{height * width}", float(height * width))
        yield helper.make_node("ReduceSum", [means, node.input[1]], [total], name=f"{node.name}:total", keepdims=0)
        yield helper.make_node("Mul", [total, size], list(node.output), name=f"{node.name}:scaled")

    def _constant(self, name: str, value: float) -> str:
        self.added[name] = numpy_helper.from_array(np.array(value, np.float32), name)
        return name

    @staticmethod
    def _like(node: onnx.NodeProto, kind: str, inputs: list[str]) -> onnx.NodeProto:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute if kind == node.op_type}
        return helper.make_node(kind, inputs, list(node.output), name=node.name, **attributes)

"""Which ONNX operators ONNX Runtime Training 1.19.2 differentiates on a CPU, and the refusal of all others by layer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import onnx

from edge.contracts.errors import ExportRefused

DIFFERENTIABLE = frozenset({
    "Abs", "Add", "BatchNormalization", "Cast", "Clip", "Concat", "Conv", "Cos", "Div", "Erf", "Exp",
    "Expand", "Flatten", "Gather", "GatherElements", "Gelu", "Gemm", "Identity",
    "LSTM", "LayerNormalization", "Log", "LogSoftmax", "MatMul", "Max", "MaxPool", "Min", "Mul", "Neg", "Pad", "Pow",
    "Reciprocal", "ReduceMean", "ReduceSum", "Relu", "Reshape", "ScatterElements", "ScatterND", "Sigmoid", "Sin",
    "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Tile", "Transpose", "Unsqueeze", "Where",
})  # fmt: skip
_STOPS = frozenset({
    "Shape", "Size", "ArgMax", "ArgMin", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsNaN",
})  # fmt: skip
"""Operators whose outputs are shapes, positions or truths: nothing flows back through them, in torch neither."""
_INSTEAD = {
    "ConvTranspose": "plain convolutions, or the runtime onnxruntime",
    "ReduceMax": "average pooling, or the runtime onnxruntime",
    "ReduceMin": "average pooling, or the runtime onnxruntime",
}


def require_gradients(model: onnx.ModelProto, objective: str, trained: Iterable[str]) -> None:
    """Check that every operator between ``trained`` inputs and ``objective`` has a gradient.

    Raises:
        ExportRefused: naming the layer of the first one that has not.
    """
    for error in missing_gradients(model.graph.node, objective, trained):
        raise error


def missing_gradients(
    nodes: Iterable[onnx.NodeProto], objective: str, trained: Iterable[str], *, known: Collection[str] = ()
) -> Iterator[ExportRefused]:
    """A refusal for every operator between ``trained`` inputs and ``objective`` that has no gradient.

    Args:
        nodes: in an order in which they can run.
        known: further operators to pass over.
    """
    reached = set(trained)
    moving: list[onnx.NodeProto] = []
    for node in nodes:
        if node.op_type not in _STOPS and reached.intersection(node.input):
            reached.update(node.output)
            moving.append(node)
    wanted = {objective}
    on_path = []
    for node in reversed(moving):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            on_path.append(node)
    for node in reversed(on_path):
        if node.op_type not in DIFFERENTIABLE and node.op_type not in known:
            yield ExportRefused(
                layer_of_node(node),
                f"ONNX Runtime Training has no gradient of {node.op_type}",
                instead=_INSTEAD.get(node.op_type, "another layer, or the runtime onnxruntime"),
            )


def layer_of_node(node: onnx.NodeProto) -> str:
    """Path of the layer a translated node came from."""
    return node.name.partition("/")[0] or "(the module itself)"

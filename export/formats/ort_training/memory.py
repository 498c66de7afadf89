"""How much memory a step of the training model holds.

ONNX knows the shapes of the forward pass only; those of the runtime's own operators follow from it: a gradient is as
large as what it is the gradient of, and the builder names it ``<value>_grad``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace

import onnx

from edge.contracts.tensors import BATCH, TensorSpec, is_carried
from export.formats.onnx_step.execution_order import in_execution_order
from export.formats.ort_training.training_model import FACTOR, POSITIVE
from export.memory_plan import REUSING, MemoryPlan, intermediate_peak, value_bytes
from export.program_inputs import BATCH_ROLES

_GRADIENT_NAME = re.compile(r"(.*)_grad(_\d+)?")
_LIKE: dict[str, tuple[int, ...]] = {
    "ReluGrad": (0,), "GeluGrad": (0,), "SoftmaxGrad_13": (0,), "LogSoftmaxGrad_13": (0,), "SigmoidGrad": (0,),
    "TanhGrad": (0,), "BatchNormInternal": (0, 3, 4, 3, 4), "BatchNormalizationGrad": (1, 2, 2),
    "ConvGrad": (1, 2), "LayerNormalizationGrad": (1, 2, 2), "Scale": (0,),
}  # fmt: skip
"""Operators of the runtime: for each output, the input it is as large as."""
_REUSING = REUSING | {"ReluGrad", "GeluGrad", "SigmoidGrad", "TanhGrad", "Sum"}


def training_memory(
    model: onnx.ModelProto, forward: onnx.ModelProto, tensors: Iterable[TensorSpec], batch: int
) -> MemoryPlan:
    """State once, a buffer per gradient, the batch, and the peak of everything in between.

    Args:
        forward: what ``model`` was differentiated from.
    """
    tensors = list(tensors)
    state = sum(t.byte_count() for t in tensors if is_carried(t))
    gradients = sum(t.byte_count() for t in tensors if t.role == "parameter")
    taken = {value.name for value in forward.graph.input}
    fed = sum(t.byte_count(batch) for t in tensors if t.role in BATCH_ROLES and t.name in taken)
    sizes = _sizes(model, forward, tensors, batch)
    ordered = _shapes_early(in_execution_order(model))
    peak, node = intermediate_peak(ordered, batch, sizes=sizes, reusing=_REUSING)
    workspace = max((_workspace_bytes(n, forward_shapes(forward, batch)) for n in model.graph.node), default=0)
    return MemoryPlan(state, gradients, fed, peak + workspace, node, len(model.graph.node))


def with_variants(memory: MemoryPlan, models: Iterable[onnx.ModelProto]) -> MemoryPlan:
    """``memory`` of a step with those of a part of it beside it: buffers for their gradients, and their graphs."""
    models = list(models)
    buffers = sum(
        4 * math.prod(d.dim_value for d in value.type.tensor_type.shape.dim)
        for model in models
        for value in model.graph.input
        if value.name.endswith("_grad.accumulation.buffer")
    )
    nodes = sum(len(model.graph.node) for model in models)
    return replace(memory, written=memory.written + buffers, nodes=memory.nodes + nodes)


def forward_shapes(forward: onnx.ModelProto, batch: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the forward pass's values at one batch size, where they are known."""
    fixed = _at_batch(forward, batch)
    inferred = onnx.shape_inference.infer_shapes(fixed, data_prop=True)
    shapes = {}
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        dims = value.type.tensor_type.shape.dim
        if all(d.HasField("dim_value") for d in dims):
            shapes[value.name] = tuple(d.dim_value for d in dims)
    return shapes


def _sizes(
    model: onnx.ModelProto, forward: onnx.ModelProto, tensors: Iterable[TensorSpec], batch: int
) -> dict[str, int]:
    """Bytes of every value of ``model`` that is worth counting."""
    known = {t.name: t.byte_count(batch) for t in tensors}
    known |= value_bytes(_at_batch(model, batch), batch) | value_bytes(forward, batch)
    for node in model.graph.node:
        if node.op_type == "LSTMTraining":
            _add_lstm(node, known)
        like = _LIKE.get(node.op_type, ())
        if node.output[0].endswith((POSITIVE, FACTOR)) and node.input[0] in known:
            known[node.output[0]] = known[node.input[0]] * 4 if node.op_type == "Cast" else known[node.input[0]] // 4
        for i, name in enumerate(node.output):
            if not name or name in known:
                continue
            named = _GRADIENT_NAME.fullmatch(name)
            if named and named[1] in known:
                known[name] = known[named[1]]
            elif i < len(like) and node.input[like[i]] in known:
                known[name] = known[node.input[like[i]]]
    return known


def _add_lstm(node: onnx.NodeProto, known: dict[str, int]) -> None:
    """Outputs, last states, and what the backward pass reads: all cells and all four gates."""
    y = known.get(node.output[0], 0)
    for name, size in zip(node.output, (y, 0, 0, y, 4 * y), strict=False):
        known[name] = size


def _workspace_bytes(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]]) -> int:
    """The image that a convolution's gradient unfolds into columns, one example at a time."""
    if node.op_type != "ConvGrad":
        return 0
    weight = shapes.get(node.input[2])
    gradient = shapes.get(re.sub(r"_grad(_\d+)?$", "", node.input[0]))
    if weight is None or gradient is None:
        return 0
    return 4 * math.prod(weight[1:]) * math.prod(gradient[2:])


def _shapes_early(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` with every Shape and Size right behind what it reads, which it then does not keep alive."""
    nodes = list(model.graph.node)
    early: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        if node.op_type in ("Shape", "Size"):
            early.setdefault(node.input[0], []).append(node)
    made = {name for node in nodes for name in node.output}
    order = [node for source, readers in early.items() if source not in made for node in readers]
    for node in nodes:
        if node.op_type not in ("Shape", "Size"):
            order.append(node)
            order += [reader for name in node.output for reader in early.get(name, ())]
    del model.graph.node[:]
    model.graph.node.extend(order)
    return model


def _at_batch(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in (*fixed.graph.input, *fixed.graph.output, *fixed.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == BATCH:
                dim.Clear()
                dim.dim_value = batch
    return fixed

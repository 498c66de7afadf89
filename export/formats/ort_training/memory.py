"""How much memory a step of the training model holds."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from edge.contracts.tensors import STATE_ROLES, TensorSpec
from export.formats.memory_plan import MemoryPlan, intermediate_peak
from export.formats.onnx_step.execution_order import in_execution_order


def training_memory(model: onnx.ModelProto, tensors: Iterable[TensorSpec], batch: int) -> MemoryPlan:
    """State once, a buffer per gradient, the batch, and the peak of everything in between."""
    tensors = list(tensors)
    state = sum(t.byte_count() for t in tensors if t.role in STATE_ROLES)
    gradients = sum(t.byte_count() for t in tensors if t.role == "parameter")
    fed = sum(t.byte_count(batch) for t in tensors if t.role in ("input", "target"))
    peak, node = intermediate_peak(in_execution_order(model), batch)
    return MemoryPlan(state, gradients, fed, peak, node, len(model.graph.node))

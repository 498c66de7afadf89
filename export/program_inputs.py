"""The named inputs of a step's programs: their specs, and examples at the batch size they are traced at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from edge.contracts.tensors import CORRECTION, TEACHER, DType, Role, TensorSpec, concrete_shape
from export.capture import StepInput
from export.draws import Draws
from export.prepared_module import RUNNING_STATISTICS, batch_norms
from export.training_step import INPUT, TARGET, StepSpec

__all__ = ["INPUT", "TARGET"]
LABEL_MASK = "label_mask"
NEXT = "next:"
"""Before the name of a tensor: its new value."""
BATCH_ROLES = ("input", "features", "target", "draw")
"""Roles of what a step is fed that a batch is large by."""
TRACE_BATCHES = (997, 991, 983)
"""Batch sizes to trace at: primes that no other dimension has, so that no comparison of sizes fixes the batch."""


def example_batch(spec: StepSpec, module: nn.Module) -> Tensor:
    """Input of the tracing batch size; its memory is never touched."""
    taken = {size for p in module.parameters() for size in p.shape} | {*spec.input.shape, spec.classes}
    taken |= {size for tensor in spec.tensors for size in tensor.shape}
    batch = next(b for b in TRACE_BATCHES if b not in taken)
    dtype = torch.float32 if spec.input.dtype == "float32" else torch.int64
    return torch.empty((batch, *spec.input.shape), dtype=dtype)


def state_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Buffers that are state: the running statistics. All others are constants of the architecture."""
    statistics = {f"{path}.{name}" if path else name for path in batch_norms(module) for name in RUNNING_STATISTICS}
    return {name: b for name, b in module.named_buffers() if name in statistics}


def weight_inputs(module: nn.Module, spec: StepSpec, buffers: Mapping[str, Tensor]) -> list[StepInput]:
    roles = {n: "frozen" if n in spec.frozen else "parameter" for n, _ in module.named_parameters()}
    named = [state_input(n, p, cast(Role, roles[n])) for n, p in module.named_parameters()]
    return named + [state_input(n, b, "buffer") for n, b in buffers.items()]


def draw_inputs(draws: Draws, batch: int) -> list[StepInput]:
    """Args: batch: the one that the other examples have."""
    inputs = []
    for draw in draws:
        dtype = torch.bool if draw.spec.dtype == "bool" else torch.float32
        inputs.append(StepInput(draw.spec, torch.empty(concrete_shape(draw.spec, batch), dtype=dtype)))
    return inputs


def state_input(name: str, value: Tensor, role: Role) -> StepInput:
    dtype = cast(DType, str(value.dtype).removeprefix("torch."))
    return StepInput(TensorSpec(name, tuple(value.shape), dtype, role), torch.zeros_like(value.detach()))


def scalar_input(name: str) -> StepInput:
    return StepInput(TensorSpec(name, (), "float32", "hyper"), torch.tensor(0.0))


def teacher_name(name: str) -> str:
    """Name of the received value of the parameter or running statistic ``name``."""
    return f"{name}{TEACHER}"


def correction_name(name: str) -> str:
    """Name of what is added to the gradient of the parameter ``name``."""
    return f"{name}{CORRECTION}"


def square_name(name: str) -> str:
    return f"{name}#squared_gradient"


def mask_name(name: str) -> str:
    return f"{name}#mask"

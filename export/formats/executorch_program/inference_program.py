"""A trained model as one ExecuTorch program with its weights inside: inputs to logits, what a device predicts with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from edge.contracts.errors import PlanError
from edge.contracts.tensors import BATCH, TensorSpec
from edge.runtimes.executorch.inference import AT_ONCE
from edge.runtimes.executorch.library import has_kernel
from export.capture import capture
from export.formats.executorch_program.lowering import lower, no_kernel
from export.programs import program_functions
from export.training_step import StepSpec

LOGITS = "logits"


def write_inference_program(module: nn.Module, spec: StepSpec, tensors: Mapping[str, np.ndarray], out: Path) -> None:
    """Write ``out``: the step's eval program with ``tensors`` inside, for batches of 1 to :data:`AT_ONCE`.

    Raises:
        PlanError: a tensor is missing or has another shape.
        ExportRefused: naming the layer that has no kernel on this runtime.
    """
    program = program_functions(module, spec)["eval"]
    captured = capture(program.function, program.inputs, program.module)
    constants = {s.name: _constant(s, tensors) for s in captured.inputs if s.role != "input"}
    lowered = lower(captured, [LOGITS], AT_ONCE, constants)
    for kernel, layer in lowered.kernels.items():
        if not has_kernel(kernel):
            raise no_kernel(kernel, layer)
    out.write_bytes(lowered.data)


def _constant(spec: TensorSpec, tensors: Mapping[str, np.ndarray]) -> Tensor:
    """A weight; ones for a label mask, as a deployed model knows all classes, and for targets, which are not read."""
    if spec.role in ("target", "label_mask"):
        sizes = [1 if size == BATCH else int(size) for size in spec.shape]
        return torch.ones(sizes, dtype=getattr(torch, spec.dtype))
    if spec.name not in tensors or tensors[spec.name].shape != spec.shape:
        got = tensors[spec.name].shape if spec.name in tensors else "nothing"
        raise PlanError(f"inference model: tensor '{spec.name}' is {got}, the program expects {spec.shape}; re-export")
    return torch.from_numpy(np.array(tensors[spec.name]))

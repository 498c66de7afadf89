"""In which precision simulated steps and scores multiply: float32, or bfloat16 with float32 sums on request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from coordinator.config.run_config import Precision
from coordinator.submodels.inference_form import FusedConv

DTYPES: dict[Precision, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def multiplying_in(dtype: torch.dtype, device: str) -> AbstractContextManager[object]:
    """A context in which torch converts the factors of convolutions and matrix products to ``dtype``.

    Parameters stay float32, and so do their gradients, losses and what else torch says needs it.
    """
    return nullcontext() if dtype == torch.float32 else torch.autocast(device, dtype)


def with_float32_outputs(module: nn.Module, inputs: object, outputs: object) -> object:
    """A forward hook: a loss is computed of float32 values, which torch leaves to its caller on a CPU."""
    return outputs.float() if isinstance(outputs, Tensor) and outputs.is_floating_point() else outputs


def in_precision(module: nn.Module, dtype: torch.dtype, device: str) -> Callable[[Tensor], Tensor]:
    """The forward pass of ``module`` with float32 outputs; one with fused convolutions is converted whole."""
    if dtype == torch.float32:
        return module
    if any(isinstance(part, FusedConv) for part in module.modules()):
        converted = module.to(dtype)
        return lambda x: converted(x.to(dtype)).float()

    def forward(x: Tensor) -> Tensor:
        with multiplying_in(dtype, device):
            outputs: Tensor = module(x)
        return outputs.float()

    return forward

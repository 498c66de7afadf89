"""In which precision simulated steps multiply: float32, or bfloat16 with float32 sums where that is asked for."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from coordinator.config.run_config import Precision

DTYPES: dict[Precision, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def multiplying_in(dtype: torch.dtype, device: str) -> AbstractContextManager[object]:
    """A context in which torch converts the factors of convolutions and matrix products to ``dtype``.

    Parameters stay float32, and so do their gradients, losses and what else torch says needs it.
    """
    return nullcontext() if dtype == torch.float32 else torch.autocast(device, dtype)


def with_float32_outputs(module: nn.Module, inputs: object, outputs: object) -> object:
    """A forward hook: a loss is computed of float32 values, which torch leaves to its caller on a CPU."""
    return outputs.float() if isinstance(outputs, Tensor) and outputs.is_floating_point() else outputs

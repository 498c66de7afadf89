"""What a step that keeps activations in float16 may lose by it: a part of the parity gate, with a tolerance of its own.

The gate holds such a step to torch with the same rounding, within what rounding to float16 makes of two float32
results. Here its gradient is held to that of whole activations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import numpy as np
import torch
from torch import nn

from edge.contracts.errors import ParityError
from export.reference import ReferenceStep
from export.training_step import StepSpec

TOLERANCE = 0.03
"""Of the distance from torch float64's gradient, relative to its length, all tensors together. Measured on the gate's
values: 2e-4 to 8e-4 for six of seven models of the catalog, 1e-2 for MobileNetV3, whose last batch norms see four
values there (docs/measurements/2026-11-29-float16-activations.md)."""


def check_rounding(
    module: nn.Module, spec: StepSpec, values: Mapping[str, np.ndarray], got: Mapping[str, np.ndarray]
) -> float:
    """How far the gradients ``got`` are from those of whole activations.

    Raises:
        ParityError: further than :data:`TOLERANCE`.
    """
    whole = msgspec.structs.replace(spec, kept_activations="")
    exact = ReferenceStep(module, whole, values, torch.float64).run(1, states=False).gradients
    length = math.sqrt(sum(float(np.square(value).sum()) for value in exact.values()))
    off = math.sqrt(sum(float(np.square(got[name] - value).sum()) for name, value in exact.items()))
    error = off / length if length else off
    if not error <= TOLERANCE:  # a NaN fails as well
        raise ParityError(
            f"gradients of one step, activations kept in float16, are {error:.1e} from those of whole activations; "
            f"{TOLERANCE} is allowed",
            hint="keep them whole: recomputation or micro-batches take less memory, too",
        )
    return error

"""Values on which a self-test tells a wrong step from another rounding.

Where the input of a ReLU is within rounding of 0, two correct steps can disagree on its sign, and their next losses
then differ by 1e-4. The parity gate passes over such values; so does this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from edge.contracts.tensors import TensorSpec
from export.agreement import SEEDS
from export.gate_values import gate_values
from export.parity import one_thread
from export.reference import ReferenceStep
from export.training_step import StepSpec

CLEAR = 2.0
"""Least clearness: one float32 step can be this side of the exact one, the other that side."""
_RELUS = (F.relu, torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_)


class ReluInputs(TorchFunctionMode):
    """Keeps the input of every ReLU while it is active, in ``seen``."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _RELUS:
            self.seen.append(args[0].detach().to(torch.float64))
        return func(*args, **(kwargs or {}))


def clear_seed(module: nn.Module, spec: StepSpec, tensors: Sequence[TensorSpec], *, steps: int) -> int:
    """The first of the parity gate's seeds whose values are clear.

    Raises:
        ValueError: none is; the message says how near they come.
    """
    found = []
    with one_thread():
        for seed in SEEDS:
            found.append(clearness(module, spec, gate_values(spec, tensors, seed=seed, masked=False), steps))
            if found[-1] >= CLEAR:
                return seed
    raise ValueError(f"a ReLU input of the clearest values is {max(found):.2g} roundings from 0, {CLEAR:g} needed")


def clearness(module: nn.Module, spec: StepSpec, values: Mapping[str, np.ndarray], steps: int) -> float:
    """The ReLU input nearest to 0 in torch float64, over the most that torch float32 loses on an input of that ReLU.

    The least such quotient of all ReLUs in all ``steps``; infinite without any.
    """
    runs = []
    for dtype in (torch.float64, torch.float32):
        with ReluInputs() as inputs:
            ReferenceStep(module, spec, values, dtype).run(steps)
        runs.append(inputs.seen)
    quotients = [math.inf]
    for exact, single in zip(*runs, strict=True):
        sizes = exact.abs()
        sizes = sizes[sizes > 0]  # on an exact 0 everybody agrees
        if sizes.numel():
            quotients.append(float(sizes.min()) / max(float((single - exact).abs().max()), 1e-12))
    return min(quotients)

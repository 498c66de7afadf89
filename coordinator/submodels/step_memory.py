"""SLT's memory model of a training step: every map that needs a gradient, all parameters, trained ones twice.

A map is what one operation of the forward pass gives, a shortcut that passes its input on included. A frozen batch norm
still normalises with batch statistics but keeps nothing. Source: SLT, Eq. 1 and the generator of its step tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from coordinator.submodels.build import apply_cut

if TYPE_CHECKING:
    from coordinator.submodels.record import Cut
    from edge.contracts.manifest import InputSpec

BATCH = 32


def step_memory(module: nn.Module, cut: Cut, spec: InputSpec, *, batch: int = BATCH) -> int:
    """Bytes of one training step of ``module`` under ``cut``, float32; nothing is run or measured."""
    built = apply_cut(module, cut).to("meta").train()
    count = _MapCount()
    passed = [part.register_forward_hook(count.passed) for part in built.modules() if isinstance(part, nn.Identity)]
    with count:
        built(torch.zeros(batch, *spec.shape, dtype=getattr(torch, spec.dtype), device="meta"))
    for handle in passed:
        handle.remove()
    parameters = sum(p.numel() for p in built.parameters())
    return 4 * (count.elements + parameters + sum(p.numel() for p in built.parameters() if p.requires_grad))


class _MapCount(TorchFunctionMode):
    """Adds up the elements of every result that needs a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.requires_grad and not isinstance(out, nn.Parameter):
            self.elements += out.numel()
        return out

    def passed(self, _part: nn.Module, _inputs: object, out: Tensor) -> None:
        """An identity's output, which no operation made."""
        if out.requires_grad:
            self.elements += out.numel()

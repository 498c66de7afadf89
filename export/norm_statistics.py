"""The program ``stats``: batch norms' statistics over many batches, without training.

For each batch it moves them by ``running += momentum * (batch's mean, unbiased variance - running)``; fed 1 / (n + 1)
for batch n, that is their mean over batches. A norm that the model calls several times has the mean of its calls.
Source: HeteroFL (Diao et al., ICLR 2021), static batch normalisation.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from export.draws import Draws, has_draws, undrawn, without_draws
from export.prepared_module import RUNNING_STATISTICS, batch_norms, moving_norms, prepared_module, with_statistics
from export.program_inputs import INPUT, state_buffers
from export.reference import forward_once, module_with
from export.step_objective import objective_of
from export.training_step import StepSpec

PROGRAM = "stats"
MOMENTUM = "stats_momentum"


def gathering(module: nn.Module, moving: Sequence[str]) -> nn.Module:
    """A copy, of a module whose norms have running statistics, whose norms leave a batch's own behind.

    Args:
        moving: paths of the norms that it is for. All others normalise with the statistics they have, as in training:
            what was trained above them never saw others.
    """
    module = copy.deepcopy(module).train()
    for name, norm in batch_norms(module).items():
        norm.train(name in moving)
        norm.momentum = 1.0
    return module


def moved_by(moving: Sequence[str]) -> tuple[str, ...]:
    """Names of the buffers that the program gives for the norms ``moving``."""
    return tuple(f"{path}.{name}".removeprefix(".") for path in moving for name in RUNNING_STATISTICS)


def gathered(
    module: nn.Module, spec: StepSpec, draws: Draws, moving: Sequence[str], values: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """One batch on named values: (the moved statistics, nothing hidden)."""
    live = {n: values[n].clone() for n in state_buffers(module)}
    with torch.no_grad(), undrawn(module) if draws else nullcontext(), _by_call(module, moving) as calls:
        state = {**{n: values[n] for n, _ in module.named_parameters()}, **live}
        if spec.task:  # which calls the module as it likes
            objective_of(spec).training(module, spec, draws, state, values)
        else:
            functional_call(module, state, (values[INPUT],))
    several = {name: torch.stack(found).mean(0) for name, found in calls.items() if len(found) > 1}
    momentum = values[MOMENTUM]
    return {f"next:{n}": values[n] + momentum * (several.get(n, live[n]) - values[n]) for n in moved_by(moving)}, {}


def reference_statistics(
    module: nn.Module, spec: StepSpec, values: Mapping[str, np.ndarray], dtype: torch.dtype
) -> dict[str, np.ndarray]:
    """Every buffer after one batch, float64, by torch's own mean over a norm's calls."""
    prepared = prepared_module(module, spec)
    moving = moving_norms(prepared)
    prepared = module_with(with_statistics(prepared), values).to(dtype).train()
    before = {n: b.double().numpy().copy() for n, b in prepared.named_buffers()}
    for name, norm in batch_norms(prepared).items():
        norm.train(name in moving)
        norm.momentum, norm.num_batches_tracked = None, torch.zeros((), dtype=torch.int64)
    prepared = without_draws(prepared) if has_draws(values) else prepared
    with torch.no_grad():
        forward_once(prepared, spec, values, dtype)
    momentum = float(values[MOMENTUM])
    after = {n: b.double().numpy() for n, b in prepared.named_buffers() if n in before}
    return {n: before[n] + momentum * (value - before[n]) for n, value in after.items()}


@contextmanager
def _by_call(module: nn.Module, moving: Sequence[str]) -> Iterator[dict[str, list[Tensor]]]:
    """Statistics of every call of the norms ``moving``, by buffer, while it is open."""
    calls: dict[str, list[Tensor]] = {name: [] for name in moved_by(moving)}
    handles = []
    for path in moving:
        names = moved_by([path])

        def keep(norm: nn.Module, *_: object, names: tuple[str, ...] = names) -> None:
            for name, kept in zip(names, RUNNING_STATISTICS, strict=True):
                calls[name].append(getattr(norm, kept).clone())

        handles.append(module.get_submodule(path).register_forward_hook(keep))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()

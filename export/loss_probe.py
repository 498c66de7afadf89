"""The program ``train_probe``: what one batch loses under the received weights, under earlier ones, under fewer.

It runs before the first step of a round and moves nothing. Its four numbers ``probe#losses`` are an accumulator, so
they come back with the report: how often it counted, and the losses of the received weights, of those that the server
held before (``<name>#previous``), and of the received ones without every masked entry whose magnitude is below
``<name>#threshold``. Only its first run counts. Batch norms take the batch's own statistics for all three.
The loss of the received weights is its ``loss`` as well, one more among those of the round's steps.
Source: the loss comparison of online gradient sparsity (Han et al., "Adaptive gradient sparsification for efficient
federated learning", ICDCS 2020), here on the devices instead of examples sent to the server.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from export.draws import without_draws
from export.reference import ReferenceStep
from export.step_functions import masked_logits, summed_loss
from export.training_step import StepSpec

PROGRAM = "train_probe"
LOSSES = "probe#losses"
PREVIOUS, THRESHOLD = "#previous", "#threshold"


def probe_step(spec: StepSpec) -> StepSpec:
    """The step whose forward pass the losses are of: batch statistics, whatever training does."""
    return msgspec.structs.replace(spec, norm="batch", frozen_norm="batch", probe=False)


def probed(module: nn.Module, spec: StepSpec, values: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """One run on named values: (loss of the received weights and the new ``probe#losses``, nothing hidden)."""
    names = [name for name, _ in module.named_parameters()]
    losses = []
    with torch.no_grad():
        for weights in (
            {n: values[n] for n in names},
            {n: values[n + PREVIOUS] for n in names},
            {n: _thinned(values, n) if n in spec.masked else values[n] for n in names},
        ):
            logits = masked_logits(functional_call(module, weights, (values["input"],)), values.get("label_mask"))
            losses.append((summed_loss(logits, values["target"], spec)[0] / values["target"].numel()).reshape(1))
        counted = torch.cat([torch.ones_like(losses[0]), *losses])
        is_first = values[LOSSES][:1] < 0.5
        sums = torch.where(is_first, counted, values[LOSSES])
    return {"loss": losses[0].reshape(()), f"next:{LOSSES}": sums}, {}


def reference_losses(
    module: nn.Module, spec: StepSpec, values: Mapping[str, np.ndarray], dtype: torch.dtype
) -> np.ndarray:
    """What ``probe#losses`` is after one run, [4] float64, by torch's own losses."""
    names = [name for name, _ in module.named_parameters()]
    thinned = {n: np.where(np.abs(values[n]) >= values[n + THRESHOLD], values[n], 0) for n in spec.masked}
    found = [1.0]
    for weights in ({}, {n: values[n + PREVIOUS] for n in names}, thinned):
        step = ReferenceStep(module, probe_step(spec), {**values, **weights}, dtype)
        with torch.no_grad():
            module = without_draws(step.module) if step.draws else step.module
            found.append(float(step.loss(step.masked(module(step.x)))))
    return np.array(found)


def _thinned(values: Mapping[str, Tensor], name: str) -> Tensor:
    weight = values[name]
    return torch.where(weight.abs() >= values[name + THRESHOLD], weight, torch.zeros_like(weight))

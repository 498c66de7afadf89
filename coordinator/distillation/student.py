"""Training a model at the coordinator on what its teachers say to the proxy set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from coordinator.distillation.ensembles import Targets
from coordinator.submodels.build import load_tensors, module_tensors
from coordinator.submodels.values import NotFinite
from edge.contracts.streams import permutation, stream_seed

if TYPE_CHECKING:
    from coordinator.config.method_options import Options
    from coordinator.submodels.values import Tensors

OPTIMIZERS = ("adam", "sgd")
SCHEDULES = ("cosine", "constant")


@dataclass(frozen=True)
class Distillation:
    """How a student is trained; defaults are FedDF's.

    Options of the methods that distil, in kebab case: ``distillation-steps`` (0: nothing is distilled),
    ``distillation-batch``, ``distillation-lr``, ``distillation-optimizer`` (``adam`` or ``sgd``),
    ``distillation-momentum`` (of ``sgd``), ``distillation-schedule`` (``cosine`` to 0 over the steps, or ``constant``).
    """

    steps: int = 1000
    batch: int = 128
    lr: float = 1e-3
    optimizer: str = "adam"
    momentum: float = 0.0
    schedule: str = "cosine"


def read_distillation(read: Options, default: Distillation) -> Distillation:
    """The options of :class:`Distillation`."""
    lr = read.number("distillation-lr", default.lr, low=0, strict=True)
    momentum = read.number("distillation-momentum", default.momentum, low=0)
    return Distillation(
        steps=read.integer("distillation-steps", default.steps, low=0),
        batch=read.integer("distillation-batch", default.batch, low=2),
        lr=default.lr if lr is None else lr,
        optimizer=read.choice("distillation-optimizer", OPTIMIZERS, default.optimizer),
        momentum=default.momentum if momentum is None else momentum,
        schedule=read.choice("distillation-schedule", SCHEDULES, default.schedule),
    )


def distilled(
    module: nn.Module,
    tensors: Tensors,
    inputs: np.ndarray,
    targets: Targets,
    settings: Distillation,
    *,
    seed: int,
    device: str,
    where: str,
) -> dict[str, np.ndarray]:
    """``tensors`` after training on ``targets``; the same arguments give the same bits.

    The student is in train mode: batch norms use each batch's statistics and gather running ones of the proxy set.
    Batches are drawn without replacement, pass after pass; what is left of a pass is left out.
    Memory: the model, its gradients and the optimizer's slots, and one batch.

    Args:
        inputs: proxy inputs [N, ...].
        seed: of the order of batches and of dropout.
        where: whose student it is, for the message.

    Raises:
        NotFinite: the student's values are no longer finite.
    """
    if not settings.steps:
        return dict(tensors)
    load_tensors(module, tensors)
    module.train().to(device)
    parameters = list(module.parameters())
    optimizer = (
        torch.optim.Adam(parameters, lr=settings.lr)
        if settings.optimizer == "adam"
        else torch.optim.SGD(parameters, lr=settings.lr, momentum=settings.momentum)
    )
    batch = min(settings.batch, len(inputs))
    each = len(inputs) // batch
    order = np.empty(0, np.int64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for step in range(settings.steps):
            if step % each == 0:
                order = permutation(stream_seed(seed, "distillation-pass", step // each), len(inputs))
            chosen = order[(step % each) * batch :][:batch]
            if settings.schedule == "cosine":
                for group in optimizer.param_groups:
                    group["lr"] = settings.lr * (1 + math.cos(math.pi * step / settings.steps)) / 2
            loss = targets.loss(module(torch.tensor(inputs[chosen]).to(device)), chosen)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    result = module_tensors(module)
    if not all(np.isfinite(value).all() for value in result.values()):
        raise NotFinite(f"{where}: distillation left values that are not finite; lower $.method.distillation-lr")
    return result

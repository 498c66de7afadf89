"""What a model says to the proxy set: logits, batch by batch, in the order of the inputs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from coordinator.submodels.build import load_tensors
from edge.contracts.errors import UpdateRejected

if TYPE_CHECKING:
    from coordinator.submodels.values import Tensors

BATCH = 256
"""Examples per forward pass, as an evaluation's; with batch statistics the logits depend on it."""


def proxy_logits(
    module: nn.Module, tensors: Tensors, inputs: np.ndarray, *, norm: str, device: str, where: str
) -> np.ndarray:
    """Logits [N, classes, ...], float32, of ``module`` with the values ``tensors`` (buffers may be missing).

    Args:
        norm: ``running`` uses the model's own statistics, ``batch`` each batch's.
        where: whose model it is, for the message.

    Raises:
        UpdateRejected: logits that are not finite.
    """
    load_tensors(module, tensors)
    module.eval().to(device)
    if norm == "batch":
        for child in module.modules():
            if isinstance(child, _BatchNorm):
                child.train()
    with torch.no_grad():
        parts = [
            # torch.tensor copies: how an array is aligned decides the last bits of a product.
            module(torch.tensor(inputs[first:last]).to(device)).cpu().numpy()
            for first, last in _batches(len(inputs))
        ]
    logits: np.ndarray = np.concatenate(parts).astype(np.float32, copy=False)
    if not np.isfinite(logits).all():
        raise UpdateRejected(
            f"{where}: its model's predictions on the proxy set are not finite; lower its learning rate"
        )
    return logits


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Torch computes with ``count`` threads in here: how many there are decides the last bits of a sum."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _batches(count: int) -> list[tuple[int, int]]:
    """Borders of the batches; a last one of a single example joins the one before, for batch statistics."""
    borders = [*range(0, count, BATCH), count]
    if len(borders) > 2 and borders[-1] - borders[-2] == 1:
        del borders[-2]
    return list(itertools.pairwise(borders))

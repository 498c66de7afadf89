"""The statistics of norms on given examples: what layers that are trained behind fixed ones should begin with.

A model that comes from other data has that data's statistics. Training with the batch's own adapts to them at once; a
sparse update normalises with the model's. Source: AdaBN (Li et al., "Revisiting batch normalization for practical
domain adaptation"), which does nothing else.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

BATCH = 64
"""Examples of a batch; statistics are the means over batches."""


def gathered(module: nn.Module, x_N: np.ndarray) -> nn.Module:
    """A copy of ``module`` whose batch norms have the statistics of ``x_N``, inputs as the model takes them."""
    copied = copy.deepcopy(module).eval()
    norms = [part for part in copied.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the cumulative mean
        norm.train()
    if norms:
        with torch.no_grad():
            # A last batch of one example has no variance.
            for begin in range(0, max(1, len(x_N) - 1), BATCH):
                copied(torch.from_numpy(np.ascontiguousarray(x_N[begin : begin + BATCH])))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return copied.train(module.training)

"""Classes at places: the cross-entropy of one class at each pixel or position, and its metrics; -100 counts nothing."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100
"""A target that counts nothing, as in torch."""


def one_hot(target: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """[batch, classes, ...] of targets [batch, ...]; zeros where a target is no class.

    By comparison: gather and scatter run far slower in the runtimes.
    """
    numbers = torch.arange(classes, device=target.device).reshape([1, -1] + [1] * (target.dim() - 1))
    return (target.unsqueeze(1) == numbers).to(dtype)


def entropy_sums(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Summed cross-entropy of logits [batch, classes, ...], how many targets count, and how many are hit."""
    wanted = one_hot(target, logits.shape[1], logits.dtype)
    counted = wanted.sum(1)
    loss = -(F.log_softmax(logits, 1) * wanted).sum()
    hits = ((logits.detach().argmax(1) == target).to(logits.dtype) * counted).sum()
    return loss, counted.sum(), hits


def mean_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy over the targets that count; 0 of none."""
    loss, count, _ = entropy_sums(logits, target)
    return loss / torch.clamp(count, min=1.0)

"""What several teachers say together, as targets for a student: the three papers' rules.

Logits are [N, classes, ...] with the classes on axis 1; N proxy examples. Sums are float64, in the order given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


class Targets(Protocol):
    """What a student is trained on."""

    def loss(self, logits: Tensor, chosen: np.ndarray) -> Tensor:
        """The scalar loss of a student's ``logits`` [B, classes, ...] for the proxy examples ``chosen`` [B]."""


class Mean:
    """A running mean of equally shaped arrays; memory is one float64 array whatever their number."""

    def __init__(self) -> None:
        self._sum: np.ndarray | None = None
        self.count = 0

    def add(self, value: np.ndarray) -> None:
        """Add one array."""
        self._sum = value.astype(np.float64) if self._sum is None else self._sum + value
        self.count += 1

    def result(self) -> np.ndarray:
        """The mean, float64; at least one array was added."""
        assert self._sum is not None
        return self._sum / self.count


@dataclass(frozen=True)
class SoftTargets:
    """A distribution over the classes for every proxy example: KL(target || student), the mean over the examples.

    Attributes:
        probabilities: [N, classes, ...], float64, sums of 1 over axis 1.
    """

    probabilities: np.ndarray

    def loss(self, logits: Tensor, chosen: np.ndarray) -> Tensor:
        """See :class:`Targets`."""
        target = torch.tensor(self.probabilities[chosen], dtype=logits.dtype, device=logits.device)
        return divergence(target, logits).mean()


@dataclass(frozen=True)
class ConsensusTargets:
    """Fed-ET's: cross-entropy with the consensus' class, and lambda KL(diverse || student) where teachers disagree.

    Attributes:
        labels: class of the consensus, [N, ...], int64.
        diverse: distribution of those that name another class, [N, classes, ...].
        disagreeing: whether anybody does, [N, ...].
        strength: lambda.
    """

    labels: np.ndarray
    diverse: np.ndarray
    disagreeing: np.ndarray
    strength: float

    def loss(self, logits: Tensor, chosen: np.ndarray) -> Tensor:
        """See :class:`Targets`."""
        labels = torch.tensor(self.labels[chosen], device=logits.device)
        loss = functional.cross_entropy(logits, labels)
        if self.strength:
            target = torch.tensor(self.diverse[chosen], dtype=logits.dtype, device=logits.device)
            mask = torch.tensor(self.disagreeing[chosen], dtype=logits.dtype, device=logits.device)
            loss = loss + self.strength * (divergence(target, logits) * mask).mean()
        return loss


def softmax(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Softmax over axis 1, float64."""
    scaled = logits.astype(np.float64) / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def sharpened(probabilities: np.ndarray, temperature: float) -> np.ndarray:
    """Entropy reduction aggregation: softmax of the mean *probabilities*, divided by a small temperature.

    Source: DS-FL (Itahara et al.), ERA, temperature 0.1. Probabilities lie in [0, 1], so that temperature 1 would
    flatten them; 0.1 sharpens.
    """
    return softmax(probabilities, temperature)


def consensus(teachers: Sequence[np.ndarray], strength: float) -> ConsensusTargets:
    """Fed-ET's targets from the teachers' logits, each [N, classes, ...].

    A teacher's weight for an example is the variance of its logits over the classes, divided by the sum of all
    teachers': a sure one has a wide spread. The consensus is the weighted sum, its class the label. The diverse target
    is the same weighted sum over those that name another class alone, their weights summing to one; where nobody does
    there is none. Teachers whose logits have no spread at all count alike.
    Source: Fed-ET (Cho et al.), section 3.2, weighted consensus and diversity regularization.
    """
    logits = np.stack([teacher.astype(np.float64) for teacher in teachers])
    spread = logits.var(axis=2, ddof=1, keepdims=True)
    labels = _weighted(logits, spread).argmax(axis=1)
    others = np.expand_dims(logits.argmax(axis=2) != labels, 2)
    disagreeing = np.asarray(others.any(axis=(0, 2)))
    return ConsensusTargets(labels, softmax(_weighted(logits, spread, others)), disagreeing, strength)


def divergence(target: Tensor, logits: Tensor) -> Tensor:
    """KL(target || softmax(logits)) over axis 1; 0 log 0 is 0."""
    log_target = torch.where(target > 0, target, torch.ones_like(target)).log()
    return (target * (log_target - functional.log_softmax(logits, dim=1))).sum(dim=1)


def _weighted(logits: np.ndarray, spread: np.ndarray, held: np.ndarray | None = None) -> np.ndarray:
    """Sum over the teachers (axis 0) of logits times weight, the weights of those held made to sum to one."""
    held = np.ones_like(spread, dtype=bool) if held is None else held
    weight = np.where(held, spread, 0.0)
    weight = np.where(weight.sum(axis=0) > 0, weight, held.astype(np.float64))
    total = weight.sum(axis=0)
    return np.asarray((logits * weight).sum(axis=0) / np.where(total > 0, total, 1.0))

"""Contrastive pairs: embeddings that are near for pairs that belong together and apart for those that do not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from edge.contracts.manifest import InputSpec
from export.tasks.task import Batch, Better, Model, ratio
from export.training_step import BatchTensor

_EPSILON = 1e-6
"""Under the root: the distance of two equal embeddings has no gradient."""


class ContrastivePairs:
    """``x`` and ``x2``, each as the model takes it, and ``y``: 1 for a pair that belongs together, 0 for one that does
    not. The model embeds both: [batch, size].

    Loss: y d^2 + (1 - y) max(0, margin - d)^2 with the Euclidean distance d. Source: Hadsell, Chopra, LeCun, CVPR 2006,
    equation 4, without its halves. Accuracy: d under half the margin says together.

    Args:
        margin: the distance from which a pair that does not belong together is apart enough.
    """

    better: Mapping[str, Better] = {"accuracy": "higher"}

    def __init__(self, margin: float = 1.0) -> None:
        if not margin > 0:
            raise ValueError(f"margin = {margin}; above 0 expected")
        self._margin = margin

    def tensors(self, input: InputSpec, classes: int) -> tuple[BatchTensor, ...]:
        second = BatchTensor("x2", input.shape, input.dtype, symbols=input.vocabulary, role="input")
        return (second, BatchTensor("y", (), "int64", symbols=2))

    def training_step(self, model: Model, batch: Batch) -> Tensor:
        distance = self._distance(model, batch)
        together = batch["y"].to(distance.dtype)
        apart = torch.relu(self._margin - distance)
        return (together * distance * distance + (1 - together) * apart * apart).mean()

    def evaluation_step(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        distance = self._distance(model, batch)
        said = (distance < self._margin / 2).to(distance.dtype)
        together = batch["y"].to(distance.dtype)
        return {"right": (said * together + (1 - said) * (1 - together)).sum()}

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {"accuracy": ratio(sums["right"], sums["examples"])}

    def _distance(self, model: Model, batch: Batch) -> Tensor:
        off = model(batch["x"]).flatten(1) - model(batch["x2"]).flatten(1)
        return torch.sqrt((off * off).sum(1) + _EPSILON)

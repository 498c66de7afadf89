"""Regression: a number, or several, for each example."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from edge.contracts.manifest import InputSpec
from export.tasks.task import Batch, Better, Model, ratio
from export.training_step import BatchTensor

_LOSSES = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": F.smooth_l1_loss}


class Regression:
    """Predictions [batch, outputs] held against ``y``; ``classes`` of the model are its outputs, one by default.

    Args:
        loss: ``mse``, ``mae`` or ``huber``.
    """

    better: Mapping[str, Better] = {"rmse": "lower", "mae": "lower"}

    def __init__(self, loss: str = "mse") -> None:
        if loss not in _LOSSES:
            raise ValueError(f"loss = '{loss}'; one of {', '.join(_LOSSES)} expected")
        self._loss = _LOSSES[loss]

    def tensors(self, input: InputSpec, classes: int) -> tuple[BatchTensor, ...]:
        return (BatchTensor("y", (classes,) if classes > 1 else (), "float32"),)

    def training_step(self, model: Model, batch: Batch) -> Tensor:
        predicted = model(batch["x"])
        return self._loss(predicted, batch["y"].reshape(predicted.shape))

    def evaluation_step(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        predicted = model(batch["x"])
        off = predicted - batch["y"].reshape(predicted.shape)
        return {"squares": (off * off).sum(), "absolute": off.abs().sum(), "values": (off * 0 + 1).sum()}

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {
            "rmse": ratio(sums["squares"], sums["values"]) ** 0.5,
            "mae": ratio(sums["absolute"], sums["values"]),
        }

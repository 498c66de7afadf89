"""Autoencoders: examples without labels, given back by the model; what it gives back badly is an anomaly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from edge.contracts.manifest import InputSpec
from export.tasks.task import Batch, Better, Model, ratio
from export.training_step import BatchTensor


class Autoencoder:
    """The mean squared difference between ``x`` and what the model makes of it, in the same number of values.

    Predictions are that difference for each example, [batch]: the anomaly score.
    """

    better: Mapping[str, Better] = {"reconstruction": "lower"}

    def tensors(self, input: InputSpec, classes: int) -> tuple[BatchTensor, ...]:
        return ()

    def training_step(self, model: Model, batch: Batch) -> Tensor:
        return self.predict(model, batch).mean()

    def evaluation_step(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        return {"scores": self.predict(model, batch).sum()}

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {"reconstruction": ratio(sums["scores"], sums["examples"])}

    def predict(self, model: Model, batch: Batch) -> Tensor:
        off = model(batch["x"]).flatten(1) - batch["x"].flatten(1)
        return (off * off).mean(1)

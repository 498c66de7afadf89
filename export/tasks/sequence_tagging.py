"""Sequence tagging: one class for each position of a sequence."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from edge.contracts.manifest import InputSpec
from export.tasks.class_places import entropy_sums, mean_entropy
from export.tasks.task import Batch, Better, Model, class_target, ratio
from export.training_step import BatchTensor


class SequenceTagging:
    """Logits [batch, classes, positions] held against ``y`` [positions]; -100 is a position that counts nothing.

    The positions are the first size of the input, or its last where the input is [channels, positions].
    """

    better: Mapping[str, Better] = {"accuracy": "higher"}

    def tensors(self, input: InputSpec, classes: int) -> tuple[BatchTensor, ...]:
        return (class_target(classes, input.shape[-1]),)

    def training_step(self, model: Model, batch: Batch) -> Tensor:
        return mean_entropy(model(batch["x"]), batch["y"])

    def evaluation_step(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        _, count, hits = entropy_sums(model(batch["x"]), batch["y"])
        return {"hits": hits, "positions": count}

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {"accuracy": ratio(sums["hits"], sums["positions"])}

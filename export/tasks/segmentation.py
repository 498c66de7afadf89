"""Semantic segmentation: one class for each pixel."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from edge.contracts.manifest import InputSpec
from export.tasks.class_places import entropy_sums, mean_entropy, one_hot
from export.tasks.task import Batch, Better, Model, class_target, ratio
from export.training_step import BatchTensor


class Segmentation:
    """Logits [batch, classes, height, width] held against ``y`` [height, width], a class at each pixel.

    Metrics: the mean over the classes of intersection over union, and the share of pixels that are right.

    Raises:
        ValueError: an input that is no image.
    """

    better: Mapping[str, Better] = {"iou": "higher", "accuracy": "higher"}

    def tensors(self, input: InputSpec, classes: int) -> tuple[BatchTensor, ...]:
        if input.layout != "chw":
            raise ValueError(f"segmentation needs an image [channels, height, width], the input is {input.shape}")
        return (class_target(classes, *input.shape[1:]),)

    def training_step(self, model: Model, batch: Batch) -> Tensor:
        return mean_entropy(model(batch["x"]), batch["y"])

    def evaluation_step(self, model: Model, batch: Batch) -> dict[str, Tensor]:
        logits = model(batch["x"])
        _, count, hits = entropy_sums(logits, batch["y"])
        wanted = one_hot(batch["y"], logits.shape[1], logits.dtype)
        said = one_hot(logits.argmax(1), logits.shape[1], logits.dtype) * wanted.sum(1, keepdim=True)
        return {
            "hits": hits,
            "pixels": count,
            "intersection": (said * wanted).sum((0, 2, 3)),
            "union": (said + wanted - said * wanted).sum((0, 2, 3)),
        }

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        seen = sums["union"] > 0
        each = sums["intersection"][seen] / sums["union"][seen]
        return {"iou": float(each.mean()) if seen.any() else 0.0, "accuracy": ratio(sums["hits"], sums["pixels"])}

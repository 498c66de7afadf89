"""A step of one layer by itself, for layers whose surroundings cannot be traced."""

from __future__ import annotations

import copy
import math
from typing import Literal

import torch
from torch import Tensor, nn

from edge.contracts.manifest import InputSpec
from export.layer_inventory import BatchSize, Layer
from export.training_step import StepSpec

LONE = "layer"
"""Path of the layer in its step."""


class LoneLayer(nn.Module):
    """The layer between a scale, so that its own input needs a gradient, and a classifier."""

    def __init__(self, layer: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.layer = layer
        self.classifier = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [N, classes]."""
        result: Tensor = self.classifier(self.layer(x * self.scale if x.is_floating_point() else x).flatten(1))
        return result


def lone_layer(layer: Layer, part: nn.Module, spec: StepSpec) -> tuple[nn.Module, StepSpec] | None:
    """A module of ``part`` and its step, otherwise as ``spec``; None unless it takes one tensor and gives one."""
    if len(layer.takes) != 1 or len(layer.gives) != 1:
        return None
    (taken,), (given,) = layer.takes, layer.gives
    if given is None:
        return None
    sizes, features = _per_example(taken.shape), _per_example(given.shape)
    if not sizes or not features or not given.dtype.is_floating_point:
        return None
    dtype: Literal["float32", "int64"] = "float32" if taken.dtype.is_floating_point else "int64"
    rows = getattr(part, "num_embeddings", 2)
    module = LoneLayer(copy.deepcopy(part), math.prod(features), spec.classes)
    lone = StepSpec(
        input=InputSpec(layout="features", shape=sizes, dtype=dtype, vocabulary=0 if dtype == "float32" else rows),
        classes=spec.classes,
        batch=spec.batch,
        optimizer=spec.optimizer,
        norm=spec.norm,
    )
    return module, lone


def _per_example(shape: tuple[int | BatchSize, ...]) -> tuple[int, ...] | None:
    """Sizes after the batch; None where the first size is not the batch, or another one depends on it."""
    rest = tuple(size for size in shape[1:] if isinstance(size, int))
    return rest if shape and shape[0] == BatchSize(1, 0) and len(rest) == len(shape) - 1 else None

"""Small networks whose lowest layers are frozen, and the steps of them."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from edge.contracts.manifest import InputSpec
from export.training_step import StepSpec

IMAGE = InputSpec(layout="chw", shape=(2, 6, 6))
CLASSES = 3


class Block(nn.Module):
    """relu(x + norm(conv(relu(norm(conv(x))))))."""

    def __init__(self, width: int, norm: type[nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = norm(width), norm(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class Residual(nn.Module):
    """A stem, two blocks, a classifier."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.blocks = nn.Sequential(Block(4, norm), Block(4, norm))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.blocks(F.relu(self.stem(x))).mean((2, 3)))
        return logits


class GroupOfTwo(nn.GroupNorm):
    """A norm that has no statistics of a batch."""

    def __init__(self, width: int) -> None:
        super().__init__(2, width)


def frozen_step(module: nn.Module, *prefixes: str, features: str = "float32", **choice: Any) -> StepSpec:
    """The step with parameters below ``prefixes`` frozen, their norms static."""
    names = tuple(name for name, _ in module.named_parameters() if name.startswith(prefixes))
    given = {"input": IMAGE, "frozen": names, "frozen_norm": "static", "cached_features": features, **choice}
    return StepSpec(classes=CLASSES, batch=6, **given)

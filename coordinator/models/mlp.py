"""A multi-layer perceptron: nearly all of its memory is parameters, so the size of a cut is what decides who fits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from edge.contracts.errors import ConfigError


class MLP(nn.Module):
    """Linear layers ``fc1``, ``fc2``, ... with ReLU between them; [batch, ...] -> [batch, classes]."""

    def __init__(self, features: int, hidden: Sequence[int], classes: int) -> None:
        super().__init__()
        widths = [features, *hidden, classes]
        self.depth = len(widths) - 1
        for i in range(self.depth):
            self.add_module(f"fc{i + 1}", nn.Linear(widths[i], widths[i + 1]))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for i in range(self.depth - 1):
            x = self.relu(self.get_submodule(f"fc{i + 1}")(x))
        return self.get_submodule(f"fc{self.depth}")(x)


def mlp(*, input_shape: tuple[int, ...], classes: int, hidden: Sequence[int] = (2048, 2048)) -> nn.Module:
    """64-2048-2048-10 by default; ``hidden`` gives other widths.

    Raises:
        ConfigError: a width that is not a positive count.
    """
    if not hidden or any(not isinstance(width, int) or width < 1 for width in hidden):
        raise ConfigError([f"$.model.options.hidden: {list(hidden)} given, one or more positive widths expected"])
    return MLP(math.prod(input_shape), hidden, classes)

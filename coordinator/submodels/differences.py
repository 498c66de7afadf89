"""A trained difference beside a frozen linear weight: under a mask, sparse fine-tuning whose entries alone travel.

y = (W + S) x: W keeps its name and is sent once, S starts at zero and stays zero outside its mask.
Source: SLoRA (Babakniya et al.), its first stage.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edge.contracts.errors import PlanError
from edge.contracts.streams import splitmix64


class DifferenceLinear(nn.Module):
    """x -> x (W + S)^T + bias; ``weight`` and ``bias`` are the dense layer's, ``difference`` S [out, in] is trained."""

    def __init__(self, path: str, dense: nn.Module) -> None:
        """Raises PlanError for anything but a linear layer."""
        super().__init__()
        if type(dense) is not nn.Linear:
            raise PlanError(f"layer '{path}': no difference to a {type(dense).__name__}, only to a Linear")
        self.weight = dense.weight
        self.register_parameter("bias", dense.bias)
        self.difference = nn.Parameter(torch.zeros_like(dense.weight))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight + self.difference, self.bias)


def random_mask(seed: int, shape: tuple[int, ...], density: float) -> np.ndarray:
    """A mask with round(density x entries) True ones, at least one, each choice of entries equally likely."""
    count = int(np.prod(shape))
    kept = np.argsort(splitmix64(seed, count), kind="stable")[: max(1, round(density * count))]
    mask = np.zeros(count, bool)
    mask[kept] = True
    return mask.reshape(shape)

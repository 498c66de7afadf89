"""Bottleneck adapters: behind a frozen linear layer, a small trained perceptron with its own residual.

Source: Houlsby et al., "Parameter-efficient transfer learning for NLP", section 2 (the module, near identity at first);
Pfeiffer et al., "AdapterFusion", for one behind the feed-forward part of each block and for ReLU.
"""

# Dims: O outputs of the frozen layer, M units of the bottleneck.

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from coordinator.submodels.lora import gaussian_rows
from edge.contracts.errors import PlanError


class AdapterLinear(nn.Module):
    """x -> h + up(relu(down(h))), h = x W^T + bias; down [M, O] and up [O, M] with biases, up zero at first.

    ``weight`` and ``bias`` are the dense layer's own parameters.
    """

    def __init__(self, path: str, dense: nn.Module, size: int) -> None:
        """Raises PlanError for anything but a linear layer."""
        super().__init__()
        if type(dense) is not nn.Linear:
            raise PlanError(f"layer '{path}': no adapter behind a {type(dense).__name__}, only behind a Linear")
        self.weight = dense.weight
        self.register_parameter("bias", dense.bias)
        self.down = skip_init(nn.Linear, dense.out_features, size)
        self.up = skip_init(nn.Linear, size, dense.out_features)
        self.draw(0)

    def draw(self, seed: int) -> None:
        """First values: normal rows of unit fan-in in ``down``, zero in ``up``: the layer computes as before."""
        with torch.no_grad():
            self.down.weight.copy_(torch.from_numpy(gaussian_rows(seed, *self.down.weight.shape)))
            for zero in (self.down.bias, self.up.weight, self.up.bias):
                zero.zero_()

    def forward(self, x: Tensor) -> Tensor:
        h = F.linear(x, self.weight, self.bias)
        out: Tensor = h + self.up(torch.relu(self.down(h)))
        return out

    def extra_repr(self) -> str:
        return f"size={self.down.out_features}"

"""Prefix tuning: trained keys and values before those of a frozen attention, from a small perceptron.

P = MLP(P'): an embedding of each prefix token goes through ``hidden`` units, tanh, and out to its key and its value.
Source: Li and Liang, "Prefix-tuning: optimizing continuous prompts for generation", section 4.3, with one perceptron
per block. They drop the perceptron after training; here it stays part of the model, so that rounds go on from it.
"""

# Dims: B batch, T tokens, L prefix tokens, H heads, D channels per head, W width.

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from coordinator.models.vit import Attention
from coordinator.submodels.lora import gaussian_rows
from edge.contracts.errors import PlanError
from edge.contracts.streams import stream_seed


class PrefixAttention(nn.Module):
    """The attention of which ``qkv`` and ``proj`` are taken over, its keys and values behind L trained ones.

    ``tokens`` [L, W] -> tanh of ``hidden`` [size, W] -> ``keys_values`` [2 W, size]. A prefix changes the softmax, and
    so the output, from the first step on.
    """

    def __init__(self, path: str, dense: nn.Module, size: int, length: int) -> None:
        """Raises PlanError for another module than :class:`coordinator.models.vit.Attention`."""
        super().__init__()
        if not isinstance(dense, Attention) or type(dense.proj) is not nn.Linear:
            expected = f"{Attention.__module__}.{Attention.__qualname__}"
            raise PlanError(f"layer '{path}': a prefix needs {expected}, it is of type {type(dense).__name__}")
        width = dense.proj.out_features
        self.heads = dense.heads
        self.qkv, self.proj = dense.qkv, dense.proj
        self.tokens = nn.Parameter(torch.empty(length, width))
        self.hidden = skip_init(nn.Linear, width, size)
        self.keys_values = skip_init(nn.Linear, size, 2 * width)
        self.draw(0)

    def draw(self, seed: int) -> None:
        """First values: standard normal tokens, normal weights of unit fan-in, no bias."""
        with torch.no_grad():
            tokens = gaussian_rows(stream_seed(seed, "tokens"), *self.tokens.shape)
            self.tokens.copy_(torch.from_numpy(tokens) * self.tokens.shape[1] ** 0.5)
            for name, layer in (("hidden", self.hidden), ("keys_values", self.keys_values)):
                layer.weight.copy_(torch.from_numpy(gaussian_rows(stream_seed(seed, name), *layer.weight.shape)))
                layer.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        q_BHTD, k_BHTD, v_BHTD = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        prefix_LE = self.keys_values(torch.tanh(self.hidden(self.tokens)))
        key_HLD, value_HLD = prefix_LE.unflatten(-1, (2, self.heads, -1)).permute(1, 2, 0, 3).unbind(0)
        k_BHTD = torch.cat([key_HLD.expand(x.shape[0], -1, -1, -1), k_BHTD], 2)
        v_BHTD = torch.cat([value_HLD.expand(x.shape[0], -1, -1, -1), v_BHTD], 2)
        scores_BHTT = torch.matmul(q_BHTD, k_BHTD.transpose(-2, -1)) * q_BHTD.shape[-1] ** -0.5
        out_BHTD = torch.matmul(scores_BHTT.softmax(-1), v_BHTD)
        out: Tensor = self.proj(out_BHTD.transpose(1, 2).flatten(2))
        return out

    def extra_repr(self) -> str:
        return f"heads={self.heads}, size={self.hidden.out_features}, length={self.tokens.shape[0]}"

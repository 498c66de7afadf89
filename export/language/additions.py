"""Trained parts beside a language model's frozen ones: bottlenecks, prefixes, prompts, and the names of their tensors.

Each is an attribute of the part that it extends, which keeps its names, so that one base file serves every cut.

Where virtual positions stand: before all symbols, at places 0 to P - 1, and symbols at P and after. So a prefix or a
prompt of P moves the rows that symbols take of learned positions, and their rotations; P and the window together are at
most the model's context. A prompt gets the rows and rotations of its places, as symbols do. The keys of a prefix are
what attention reads: neither normalised nor rotated. In a block with a window a place is seen from less than so many
places behind. This is what ``peft`` computes with its ``PREFIX_TUNING`` and ``PROMPT_TUNING`` on these families.
"""

# Dims: B batch, T positions, D hidden, M units, P virtual positions, K key heads, H head size.

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FACTORS = (".u", ".v")
_PARTS = frozenset({"adapter", "prefix", "prompt"})


def is_factor(name: str) -> bool:
    """Whether tensor ``name`` is a factor beside a linear layer."""
    return name.endswith(_FACTORS)


def is_addition(name: str) -> bool:
    """Whether tensor ``name`` is of a bottleneck, a prefix or a prompt."""
    return not _PARTS.isdisjoint(name.split(".")[:-1])


def is_beside_base(name: str) -> bool:
    """Whether tensor ``name`` is one that methods add: of no base file, and held by a device in its weights."""
    return is_factor(name) or is_addition(name)


class Bottleneck(nn.Module):
    """h -> h + up gelu(down h + down_bias) + up_bias, the last zero at first: the model computes as before.

    ``down`` [M, D], ``up`` [D, M]; GELU in its tanh form. Source: Houlsby et al., "Parameter-efficient transfer
    learning for NLP", section 2.1; Pfeiffer et al., "AdapterFusion", for one behind the feed-forward part alone.
    """

    def __init__(self, width: int, units: int, device: torch.device) -> None:
        super().__init__()
        for name, shape in {
            "down": (units, width), "down_bias": (units,), "up": (width, units), "up_bias": (width,)
        }.items():  # fmt: skip
            setattr(self, name, nn.Parameter(torch.zeros(shape, device=device)))

    def forward(self, h: Tensor) -> Tensor:
        inner = F.gelu(F.linear(h, self.down, self.down_bias), approximate="tanh")
        return h + F.linear(inner, self.up, self.up_bias)

    def extra_repr(self) -> str:
        return f"units={self.down.shape[0]}"


class Prefix(nn.Module):
    """Keys and values [P, K H] that every position of a block's attention sees, besides those behind it.

    Source: Li and Liang, "Prefix-tuning", section 4.2, trained themselves, without a perceptron that makes them.
    """

    def __init__(self, length: int, width: int, device: torch.device) -> None:
        super().__init__()
        self.keys = nn.Parameter(torch.zeros(length, width, device=device))
        self.values = nn.Parameter(torch.zeros(length, width, device=device))

    @property
    def length(self) -> int:
        """Virtual positions."""
        return self.keys.shape[0]

    def before(self, k_BKTH: Tensor, v_BKTH: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the block with those of the prefix before them."""
        batch, heads, _, size = k_BKTH.shape
        made = []
        for own, given in ((self.keys, k_BKTH), (self.values, v_BKTH)):
            own_KPH = own.view(self.length, heads, size).transpose(0, 1)
            made.append(torch.cat([own_KPH.expand(batch, -1, -1, -1), given], dim=2))
        return made[0], made[1]

    def extra_repr(self) -> str:
        return f"length={self.length}"


class Prompt(nn.Module):
    """``tokens`` [P, D], read by the first block before the embedded symbols, and scored nowhere.

    Source: Lester et al., "The power of scale for parameter-efficient prompt tuning", section 2.
    """

    def __init__(self, length: int, width: int, device: torch.device) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.zeros(length, width, device=device))

    @property
    def length(self) -> int:
        """Virtual positions."""
        return self.tokens.shape[0]

    def forward(self, x_BTD: Tensor) -> Tensor:
        """The embedded symbols with the prompt before them."""
        return torch.cat([self.tokens.expand(x_BTD.shape[0], -1, -1), x_BTD], dim=1)

    def extra_repr(self) -> str:
        return f"length={self.length}"

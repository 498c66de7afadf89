"""Visual prompts: trained tokens that go through a frozen block, or a sequence of blocks, before the image's own.

They are taken away behind it, so whatever reads the tokens finds those it knows: a prompt on every block is the deep
form, one on the whole sequence the shallow form. Where among the tokens they stand does not matter, as positions are
added before. Source: Jia et al., "Visual prompt tuning", Eq. 4 to 7.
"""

# Dims: B batch, T tokens, L prompt tokens, W width.

from __future__ import annotations

import torch
from torch import Tensor, nn

from coordinator.models.vit import Block
from edge.contracts.errors import PlanError
from edge.contracts.streams import uniform


class PromptTokens(nn.Module):
    """``tokens`` [1, L, W] and the two hooks that put them before a block's tokens and take them away behind it."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(1, length, width))
        self.draw(0)

    def draw(self, seed: int) -> None:
        """First values: uniform within sqrt(6 / 2W), the paper's bound sqrt(6 / (3 patch^2 + W)) for patches of W."""
        bound = (3.0 / self.tokens.shape[2]) ** 0.5
        values = torch.from_numpy(uniform(seed, self.tokens.numel())).reshape(self.tokens.shape)
        with torch.no_grad():
            self.tokens.copy_((2 * values - 1) * bound)

    def prepend(self, _block: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Hook before a block: x [B, T, W] -> [B, L + T, W]."""
        x, *rest = args
        return (torch.cat([self.tokens.expand(x.shape[0], -1, -1), x], 1), *rest)

    def remove(self, _block: nn.Module, _args: tuple[Tensor, ...], out: Tensor) -> Tensor:
        """Hook behind a block: [B, L + T, W] -> [B, T, W]."""
        return out[:, self.tokens.shape[1] :]

    def extra_repr(self) -> str:
        return f"length={self.tokens.shape[1]}"


def with_prompt(path: str, part: nn.Module, length: int) -> nn.Module:
    """``part``, a block or a sequence of blocks, with tokens named ``prompts`` in its (first) block; in place.

    Raises:
        PlanError: ``part`` is not made of transformer blocks alone.
    """
    blocks = [part] if isinstance(part, Block) else [child for _, child in part.named_children()]
    first, last = (blocks[0], blocks[-1]) if blocks else (None, None)
    if not isinstance(first, Block) or last is None or not all(isinstance(block, Block) for block in blocks):
        raise PlanError(f"layer '{path}': a prompt needs transformer blocks, it is of type {type(part).__name__}")
    width = int(first.norm1.normalized_shape[0])
    first.prompts = PromptTokens(width, length)
    first.register_forward_pre_hook(first.prompts.prepend)
    last.register_forward_hook(first.prompts.remove)
    return part

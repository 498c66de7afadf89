"""A small vision transformer: pre-norm blocks, learned positions, mean over patches instead of a class token.

Source: Dosovitskiy et al., "An image is worth 16x16 words"; sizes chosen for 32x32 images.
"""

# Dims: B batch, T patches, H heads, D channels per head.

from __future__ import annotations

import torch
from torch import Tensor, nn

from edge.contracts.errors import ConfigError


class Attention(nn.Module):
    """Multi-head self-attention with one fused projection ``qkv`` and the output projection ``proj``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.equal_blocks = {"qkv": 3 * heads}  # cuts in width keep the same part of every head

    def forward(self, x: Tensor) -> Tensor:
        q_BHTD, k_BHTD, v_BHTD = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        scores_BHTT = torch.matmul(q_BHTD, k_BHTD.transpose(-2, -1)) * q_BHTD.shape[-1] ** -0.5
        out_BHTD = torch.matmul(scores_BHTT.softmax(-1), v_BHTD)
        return self.proj(out_BHTD.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a layer norm and a residual; [B, T, width] -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(self.gelu(self.fc1(self.norm2(x))))


class VisionTransformer(nn.Module):
    """Patches, ``depth`` blocks, norm, mean over patches, classifier; [B, C, height, width] -> [B, classes]."""

    adapted_layers: tuple[str, ...] = ("blocks.*.attention.qkv", "blocks.*.attention.proj")
    """Layers that get additive factors. Source: FedLoRA, one pair on the fused projection and one on the output's."""

    def __init__(self, input_shape: tuple[int, ...], patch: int, width: int, depth: int, heads: int, classes: int):
        super().__init__()
        channels, rows, columns = input_shape
        patches = (rows // patch) * (columns // patch)
        self.embed = nn.Conv2d(channels, width, patch, patch)
        self.position = nn.Parameter(torch.randn(1, patches, width) * 0.02)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def vit(
    *,
    input_shape: tuple[int, ...],
    classes: int,
    width: int = 128,
    depth: int = 4,
    heads: int = 4,
    patch: int = 4,
) -> nn.Module:
    """Width 128, 4 layers, 4 heads, patch 4 unless given otherwise.

    Raises:
        ConfigError: sizes that do not divide.
    """
    problems = []
    if len(input_shape) != 3 or input_shape[1] % patch or input_shape[2] % patch:
        problems.append(f"$.model.input: {list(input_shape)} given, sides must be multiples of the patch, {patch}")
    if width % heads:
        problems.append(f"$.model.options.width: {width} given, it must be a multiple of {heads} heads")
    if problems:
        raise ConfigError(problems)
    return VisionTransformer(input_shape, patch, width, depth, heads, classes)

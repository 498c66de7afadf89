"""Vision transformers with a class token: DeiT-tiny on small images and ViT-Small/16.

Source: Touvron et al., "Training data-efficient image transformers", for the sizes; PriSM (DeiT-tiny, patch 4) and
FedLoRA (ViT-Small/16, 21,669,514 parameters with 10 classes) for their use.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coordinator.models.vit import Block
from edge.contracts.errors import ConfigError


class ClassTokenTransformer(nn.Module):
    """Patches behind a class token, ``depth`` blocks, norm, classifier on the token; [B, C, H, W] -> [B, classes]."""

    dense_layers: tuple[str, ...] = ("embed", "head")
    """Layers that factorized cuts keep dense."""
    adapted_layers: tuple[str, ...] = ("blocks.*.attention.qkv", "blocks.*.attention.proj")
    """Layers that get additive factors. Source: FedLoRA, one pair on the fused projection and one on the output's."""

    def __init__(self, input_shape: tuple[int, ...], patch: int, width: int, depth: int, heads: int, classes: int):
        super().__init__()
        channels, rows, columns = input_shape
        tokens = 1 + (rows // patch) * (columns // patch)
        self.embed = nn.Conv2d(channels, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1) + self.position
        return self.head(self.norm(self.blocks(tokens))[:, 0])


def deit_tiny(*, input_shape: tuple[int, ...], classes: int, patch: int = 4) -> nn.Module:
    """Width 192, 12 layers, 3 heads."""
    return _transformer(input_shape, patch, 192, 12, 3, classes)


def vit_small(*, input_shape: tuple[int, ...], classes: int, patch: int = 16) -> nn.Module:
    """Width 384, 12 layers, 6 heads."""
    return _transformer(input_shape, patch, 384, 12, 6, classes)


def _transformer(
    input_shape: tuple[int, ...], patch: int, width: int, depth: int, heads: int, classes: int
) -> ClassTokenTransformer:
    if len(input_shape) != 3 or any(side % patch for side in input_shape[1:]):
        raise ConfigError(
            [f"$.model.input: {list(input_shape)} given, the sides of an image must be multiples of the patch, {patch}"]
        )
    return ClassTokenTransformer(input_shape, patch, width, depth, heads, classes)

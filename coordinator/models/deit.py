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
    """Patches behind a class token, ``depth`` blocks, norm, classifier on the token; [B, C, H, W] -> [B, classes].

    ``enlarge``: every pixel becomes a square of so many before the patches are cut.
    """

    dense_layers: tuple[str, ...] = ("embed", "head")
    """Layers that factorized cuts keep dense."""
    adapted_layers: tuple[str, ...] = ("blocks.*.attention.qkv", "blocks.*.attention.proj")
    """Layers that get additive factors. Source: FedLoRA, one pair on the fused projection and one on the output's."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        patch: int,
        width: int,
        depth: int,
        heads: int,
        classes: int,
        *,
        enlarge: int = 1,
    ) -> None:
        super().__init__()
        channels, rows, columns = input_shape
        tokens = 1 + (rows * enlarge // patch) * (columns * enlarge // patch)
        self.enlarge = enlarge
        self.embed = nn.Conv2d(channels, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        if self.enlarge > 1:
            shape = (*x.shape[:2], x.shape[2], self.enlarge, x.shape[3], self.enlarge)
            x = x[:, :, :, None, :, None].expand(shape).flatten(4, 5).flatten(2, 3)
        patches = self.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), patches], 1) + self.position
        return self.head(self.norm(self.blocks(tokens))[:, 0])


def deit_tiny(*, input_shape: tuple[int, ...], classes: int, patch: int = 4) -> nn.Module:
    """Width 192, 12 layers, 3 heads."""
    return _transformer(input_shape, patch, 192, 12, 3, classes)


def vit_small(*, input_shape: tuple[int, ...], classes: int, patch: int = 16, enlarge: int = 1) -> nn.Module:
    """Width 384, 12 layers, 6 heads; ``enlarge = 7`` gives 32x32 images the patches of 224x224 ones."""
    return _transformer(input_shape, patch, 384, 12, 6, classes, enlarge=enlarge)


def _transformer(
    input_shape: tuple[int, ...], patch: int, width: int, depth: int, heads: int, classes: int, *, enlarge: int = 1
) -> ClassTokenTransformer:
    if enlarge < 1:
        raise ConfigError([f"$.model.options.enlarge: {enlarge} given, a whole number from 1 expected"])
    if len(input_shape) != 3 or any(side * enlarge % patch for side in input_shape[1:]):
        larger = f", {enlarge} times enlarged" if enlarge > 1 else ""
        raise ConfigError(
            [
                f"$.model.input: {list(input_shape)} given{larger}, the sides of an image must be multiples of the "
                f"patch, {patch}"
            ]
        )
    return ClassTokenTransformer(input_shape, patch, width, depth, heads, classes, enlarge=enlarge)

"""Which convolutions the runtime's kernels do in tiles F(2 x 2, 3 x 3): the rule of their ``native/winograd.cpp``."""

from __future__ import annotations

from export.cost import ConvolutionShape

FEWEST_CHANNELS, CHANNELS, FEWEST_TILES = 32, 16, 32
"""``kFewest``, ``kChannels`` and ``kTiles`` there."""


def in_tiles(convolution: ConvolutionShape) -> bool:
    """Whether its products are made in tiles, for its output and both its gradients."""
    filters, channels, *kernel = convolution.weight
    ones, places = (1, 1), convolution.output
    is_plain = (
        tuple(kernel) == (3, 3) and convolution.stride == convolution.dilation == ones and convolution.groups == 1
    )
    if not is_plain or len(places) != 2 or min(places) < 2 or max(convolution.padding) > 2:
        return False
    if min(filters, channels) < FEWEST_CHANNELS or filters % CHANNELS or channels % CHANNELS:
        return False
    down, across = ((size + 1) // 2 for size in places)
    return convolution.examples * down * across >= FEWEST_TILES

"""DenseNet-BC for small images: 3 blocks of 6 bottleneck pairs, growth 12, compression one half.

Source: Huang et al., "Densely connected convolutional networks"; SLT, section 4, for the size: 176,122 parameters with
10 classes. Each pair puts its new channels in front of the old ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edge.contracts.errors import ConfigError

GROWTH = 12
PAIRS = 6
BLOCKS = 3


class Bottleneck(nn.Module):
    """Norm, ReLU, 1x1 convolution to 4 x growth, norm, ReLU, 3x3 convolution to ``growth`` new channels."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv2(self.relu(self.bn2(self.conv1(self.relu(self.bn1(x))))))
        return torch.cat([new, x], 1)


class Transition(nn.Module):
    """Norm, ReLU, 1x1 convolution to half the channels, 2x2 average pool."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels_in)
        self.conv = nn.Conv2d(channels_in, channels_out, 1, bias=False)
        self.relu = nn.ReLU()
        self.pool = nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(self.conv(self.relu(self.bn(x))))


class DenseNet(nn.Module):
    """Stem of 2 x growth channels, dense blocks ``block1``.. with transitions, norm, pool, ``fc``."""

    dense_layers: tuple[str, ...] = ("conv1", "fc")
    """Layers that factorized cuts keep dense."""

    def __init__(self, channels: int, classes: int, *, growth: int = GROWTH, pairs: int = PAIRS) -> None:
        super().__init__()
        width = 2 * growth
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        for block in range(1, BLOCKS + 1):
            parts = [Bottleneck(width + i * growth, growth) for i in range(pairs)]
            self.add_module(f"block{block}", nn.Sequential(*parts))
            width += pairs * growth
            if block < BLOCKS:
                self.add_module(f"transition{block}", Transition(width, width // 2))
                width //= 2
        self.bn = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        for block in range(1, BLOCKS + 1):
            x = self.get_submodule(f"block{block}")(x)
            if block < BLOCKS:
                x = self.get_submodule(f"transition{block}")(x)
        return self.fc(self.avgpool(self.relu(self.bn(x))).flatten(1))


def densenet40(*, input_shape: tuple[int, ...], classes: int, growth: int = GROWTH, pairs: int = PAIRS) -> nn.Module:
    """39 trained convolutions unless given otherwise.

    Raises:
        ConfigError: not an image, or sides the two transitions cannot halve.
    """
    if len(input_shape) != 3 or any(side % 4 for side in input_shape[1:]):
        raise ConfigError(
            [f"$.model.input: {list(input_shape)} given, [channels, height, width] with sides in multiples of 4 needed"]
        )
    return DenseNet(input_shape[0], classes, growth=growth, pairs=pairs)

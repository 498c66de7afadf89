"""A small net of depthwise-separable convolutions with batch norm. Source: MobileNet, Table 1, narrowed for 32x32."""

from __future__ import annotations

from torch import Tensor, nn

from edge.contracts.errors import ConfigError

_BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1))
"""(output channels, stride) of each block."""


class SeparableBlock(nn.Module):
    """3x3 convolution per channel, then 1x1 across channels, each with batch norm and ReLU."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels_in, channels_in, 3, stride, 1, groups=channels_in, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_in)
        self.pointwise = nn.Conv2d(channels_in, channels_out, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.depthwise(x)))
        return self.relu(self.bn2(self.pointwise(x)))


class DepthwiseNet(nn.Module):
    """Stem of 32 channels, five separable blocks, average pool, classifier; [batch, C, H, W] -> [batch, classes]."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        self.relu = nn.ReLU()
        blocks = []
        previous = 32
        for width, stride in _BLOCKS:
            blocks.append(SeparableBlock(previous, width, stride))
            previous = width
        self.blocks = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(previous, classes)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        return self.fc(self.avgpool(self.blocks(x)).flatten(1))


def depthwise(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """136,778 parameters at 3x32x32 and 10 classes.

    Raises:
        ConfigError: an input that is not channels, height, width.
    """
    if len(input_shape) != 3:
        raise ConfigError([f"$.model.input: {list(input_shape)} given, depthwise needs [channels, height, width]"])
    return DepthwiseNet(input_shape[0], classes)

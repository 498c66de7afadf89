"""ResNets in the form of successive layer training: 3x3 shortcut convolutions, and a classifier on a pooled map.

Source: SLT, section 4: the shortcut of a block that changes shape is a 3x3 convolution of stride 2 with batch norm, and
the last map is pooled by 4, so 32x32 images give 256 features and 64x64 ones 1024. Weights begin as PyTorch draws them,
as in the authors' code: those of He's rule are 2.45 times as large, and channels that come in later disturb more.
"""

from __future__ import annotations

from torch import Tensor, nn

from edge.contracts.errors import ConfigError

POOL = 4
WIDTHS = (16, 32, 64)


class SltBlock(nn.Module):
    """Two 3x3 convolutions with batch norm; ``downsample`` is the identity where the shape stays."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class SltResNet(nn.Module):
    """Stem, three stages of equal depth, average pool of 4, classifier ``fc``; [B, C, H, W] -> [B, classes]."""

    dense_layers: tuple[str, ...] = ("conv1", "*.downsample.*", "fc")
    """Layers that factorized cuts keep dense."""

    def __init__(self, input_shape: tuple[int, ...], blocks: int, classes: int) -> None:
        super().__init__()
        channels, rows, columns = input_shape
        self.conv1 = nn.Conv2d(channels, WIDTHS[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.relu = nn.ReLU()
        previous = WIDTHS[0]
        for stage, width in enumerate(WIDTHS):
            parts = [SltBlock(previous, width, 1 if stage == 0 else 2)]
            parts += [SltBlock(width, width, 1) for _ in range(blocks - 1)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*parts))
            previous = width
        self.avgpool = nn.AvgPool2d(POOL)
        self.fc = nn.Linear(previous * (rows // 4 // POOL) * (columns // 4 // POOL), classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        for stage in range(len(WIDTHS)):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return self.fc(self.avgpool(x).flatten(1))


def resnet20_slt(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Three blocks per stage; 294,874 parameters with 10 classes at 32x32."""
    return _slt(input_shape, 3, classes)


def resnet44_slt(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Seven blocks per stage."""
    return _slt(input_shape, 7, classes)


def resnet56_slt(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Nine blocks per stage."""
    return _slt(input_shape, 9, classes)


def _slt(input_shape: tuple[int, ...], blocks: int, classes: int) -> SltResNet:
    if len(input_shape) != 3 or any(side % (4 * POOL) for side in input_shape[1:]):
        raise ConfigError(
            [f"$.model.input: {list(input_shape)} given, an image whose sides are multiples of 16 needed"]
        )
    return SltResNet(input_shape, blocks, classes)

"""ResNets in their CIFAR form: 3x3 stem of stride 1, no max-pool, 1x1 shortcut convolutions, global average pool.

The option ``norm`` is ``batch`` or ``group``.

Source: He et al., "Deep residual learning", section 4.2, for the depths 6n+2; FedHM for ResNet-18/34 on small images.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from torch import Tensor, nn

from edge.contracts.errors import ConfigError

Norm = Literal["batch", "group"]
GROUPS = 8
"""Of a group norm, whatever its width."""


def normalisation(norm: Norm, channels: int) -> nn.Module:
    """The layer after a convolution: ``group`` norms know no batch, so that a step can go by micro-batches."""
    return nn.GroupNorm(GROUPS, channels) if norm == "group" else nn.BatchNorm2d(channels)


class BasicBlock(nn.Module):
    """Two normalised 3x3 convolutions, and the shortcut; ``downsample`` where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, norm: Norm = "batch") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.bn1 = normalisation(norm, channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.bn2 = normalisation(norm, channels_out)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), normalisation(norm, channels_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + self.downsample(x))


class ResNet(nn.Module):
    """Stem, ``layer1``.. of basic blocks, average pool, classifier ``fc``; [batch, C, H, W] -> [batch, classes]."""

    dense_layers: tuple[str, ...] = ("conv1", "*.downsample.*", "fc")
    """Layers that factorized cuts keep dense."""

    def __init__(
        self, channels: int, blocks: Sequence[int], widths: Sequence[int], classes: int, norm: Norm = "batch"
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False)
        self.bn1 = normalisation(norm, widths[0])
        self.relu = nn.ReLU()
        self.stages = len(blocks)
        previous = widths[0]
        for stage, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            first_stride = 1 if stage == 0 else 2
            layer = [BasicBlock(previous, width, first_stride, norm)]
            layer += [BasicBlock(width, width, 1, norm) for _ in range(count - 1)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layer))
            previous = width
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(previous, classes)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return self.fc(self.avgpool(x).flatten(1))


def resnet8(*, input_shape: tuple[int, ...], classes: int, norm: Norm = "batch") -> nn.Module:
    """One block per stage, widths 16, 32, 64."""
    return _resnet(input_shape, classes, (1, 1, 1), (16, 32, 64), norm)


def resnet20(*, input_shape: tuple[int, ...], classes: int, norm: Norm = "batch") -> nn.Module:
    """Three blocks per stage, widths 16, 32, 64."""
    return _resnet(input_shape, classes, (3, 3, 3), (16, 32, 64), norm)


def resnet18(*, input_shape: tuple[int, ...], classes: int, norm: Norm = "batch") -> nn.Module:
    """Two blocks per stage, widths 64 to 512; 11,173,962 parameters with 10 classes.

    Source: FedHM for the hybrid layout: the first block stays dense.
    """
    module = _resnet(input_shape, classes, (2, 2, 2, 2), (64, 128, 256, 512), norm)
    module.dense_layers = (*module.dense_layers, "layer1.0.*")
    return module


def resnet34(*, input_shape: tuple[int, ...], classes: int, norm: Norm = "batch") -> nn.Module:
    """3, 4, 6 and 3 blocks, widths 64 to 512; 21,328,292 parameters with 100 classes.

    Source: FedHM for the hybrid layout: the first two stages stay dense.
    """
    module = _resnet(input_shape, classes, (3, 4, 6, 3), (64, 128, 256, 512), norm)
    module.dense_layers = (*module.dense_layers, "layer1.*", "layer2.*")
    return module


def _resnet(
    input_shape: tuple[int, ...], classes: int, blocks: Sequence[int], widths: Sequence[int], norm: Norm
) -> ResNet:
    if norm not in get_args(Norm):
        raise ConfigError([f"$.model.norm: '{norm}' is unknown, a ResNet takes {' or '.join(get_args(Norm))}"])
    if len(input_shape) != 3:
        raise ConfigError([f"$.model.input: {list(input_shape)} given, a ResNet needs [channels, height, width]"])
    return ResNet(input_shape[0], blocks, widths, classes, norm)

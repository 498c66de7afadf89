"""MobileNetV3-Small: inverted residuals with depthwise convolutions, squeeze-and-excitation and hard swish.

Source: Howard et al., "Searching for MobileNetV3", table 2; 2,542,856 parameters with 1,000 classes. Its dropout is
left out.
"""

from __future__ import annotations

from torch import Tensor, nn

from edge.contracts.errors import ConfigError

# kernel, expanded channels, output channels, squeeze-and-excitation, hard swish, stride
ROWS = (
    (3, 16, 16, True, False, 2),
    (3, 72, 24, False, False, 2),
    (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2),
    (5, 240, 40, True, True, 1),
    (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1),
    (5, 144, 48, True, True, 1),
    (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1),
    (5, 576, 96, True, True, 1),
)
LAST_CONV, HIDDEN = 576, 1024
SQUEEZE = 4


def _divisible(channels: float) -> int:
    """The multiple of 8 nearest to ``channels``, not more than a tenth below it."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


class SqueezeExcitation(nn.Module):
    """Scales each channel by a gate computed from the channels' means; [B, C, H, W] -> the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = _divisible(channels / SQUEEZE)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.relu = nn.ReLU()
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.gate = nn.Hardsigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.fc2(self.relu(self.fc1(self.pool(x)))))


class InvertedResidual(nn.Module):
    """1x1 expansion, depthwise convolution, gate, 1x1 projection; a shortcut where the shape stays."""

    def __init__(
        self, channels_in: int, kernel: int, expanded: int, channels_out: int, gated: bool, swish: bool, stride: int
    ) -> None:
        super().__init__()
        activation = nn.Hardswish if swish else nn.ReLU
        self.expand: nn.Module = nn.Identity()
        if expanded != channels_in:
            self.expand = _conv(channels_in, expanded, 1, 1, 1, activation())
        self.depthwise = _conv(expanded, expanded, kernel, stride, expanded, activation())
        self.excite = SqueezeExcitation(expanded) if gated else nn.Identity()
        self.project = _conv(expanded, channels_out, 1, 1, 1, nn.Identity())
        self.has_shortcut = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.excite(self.depthwise(self.expand(x))))
        return x + y if self.has_shortcut else y


class MobileNetV3(nn.Module):
    """Stem, ``blocks``, last convolution, mean, two-layer classifier; [B, C, H, W] -> [B, classes]."""

    def __init__(self, channels: int, classes: int, stem_stride: int) -> None:
        super().__init__()
        self.stem = _conv(channels, 16, 3, stem_stride, 1, nn.Hardswish())
        blocks, previous = [], 16
        for kernel, expanded, out, gated, swish, stride in ROWS:
            blocks.append(InvertedResidual(previous, kernel, expanded, out, gated, swish, stride))
            previous = out
        self.blocks = nn.Sequential(*blocks)
        self.last = _conv(previous, LAST_CONV, 1, 1, 1, nn.Hardswish())
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.hidden = nn.Linear(LAST_CONV, HIDDEN)
        self.swish = nn.Hardswish()
        self.fc = nn.Linear(HIDDEN, classes)

    def forward(self, x: Tensor) -> Tensor:
        features = self.avgpool(self.last(self.blocks(self.stem(x)))).flatten(1)
        return self.fc(self.swish(self.hidden(features)))


def mobilenet_v3_small(*, input_shape: tuple[int, ...], classes: int, stem_stride: int = 2) -> nn.Module:
    """The published network; ``stem_stride = 1`` keeps more of a small image.

    Raises:
        ConfigError: not an image.
    """
    if len(input_shape) != 3:
        raise ConfigError([f"$.model.input: {list(input_shape)} given, [channels, height, width] needed"])
    return MobileNetV3(input_shape[0], classes, stem_stride)


def _conv(
    channels_in: int, channels_out: int, kernel: int, stride: int, groups: int, activation: nn.Module
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels_out, eps=0.001, momentum=0.01),
        activation,
    )

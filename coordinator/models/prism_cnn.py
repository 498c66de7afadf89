"""PriSM's network for FEMNIST: two convolutions and one linear layer. Source: PriSM's published code.

Its Table 7 says 64 and 64 channels, kernels of 5 and 3 and ten classes; what its runs build is this.
"""

from __future__ import annotations

from torch import Tensor, nn

from edge.contracts.errors import ConfigError


class PrismCNN(nn.Module):
    """conv 32, pool, conv 64, pool, fc classes; [batch, C, H, W] -> [batch, classes]."""

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc = nn.Linear(64 * (height // 4) * (width // 4), classes)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        logits: Tensor = self.fc(x.flatten(1))
        return logits


def prism_cnn(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """246,590 parameters at 1x28x28 and 62 classes: 832 + 51,264 + 194,494.

    Raises:
        ConfigError: an input that is not channels, height, width of at least 4x4.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        given = list(input_shape)
        raise ConfigError([f"$.model.input: {given} given, prism_cnn needs [channels, height, width] from 4x4"])
    return PrismCNN(*input_shape, classes=classes)

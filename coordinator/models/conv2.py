"""Conv-2 for 28x28 characters: two 5x5 convolutions and a wide linear layer. Source: PruneFL, Table II."""

from __future__ import annotations

from torch import Tensor, nn

from edge.contracts.errors import ConfigError


class Conv2(nn.Module):
    """conv 32, pool, conv 64, pool, fc 2048, fc classes; [batch, C, H, W] -> [batch, classes]."""

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.fc1 = nn.Linear(64 * (height // 4) * (width // 4), 2048)
        self.fc2 = nn.Linear(2048, classes)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        return self.fc2(self.relu(self.fc1(x.flatten(1))))


def conv2(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """6,603,710 parameters at 1x28x28 and 62 classes.

    Raises:
        ConfigError: an input that is not channels, height, width of at least 4x4.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise ConfigError([f"$.model.input: {list(input_shape)} given, conv2 needs [channels, height, width] from 4x4"])
    return Conv2(*input_shape, classes=classes)

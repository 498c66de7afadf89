"""VGG-11 for 32x32 images, without batch norm. Source: PruneFL, Table II, and its reference code for the classifier."""

from __future__ import annotations

from torch import Tensor, nn

from edge.contracts.errors import ConfigError

_LAYOUT = (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool")


class VGG11(nn.Module):
    """Eight 3x3 convolutions in ``features`` and three linear layers; [batch, C, H, W] -> [batch, classes]."""

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        previous = channels
        for entry in _LAYOUT:
            if isinstance(entry, int):
                layers += [nn.Conv2d(previous, entry, 3, padding=1), nn.ReLU()]
                previous = entry
            else:
                layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.fc1 = nn.Linear(512 * (height // 32) * (width // 32), 512)
        self.fc2 = nn.Linear(512, 512)
        self.fc3 = nn.Linear(512, classes)
        self.relu = nn.ReLU()
        # Without batch norm torch's default scale shrinks the signal by about 3 per layer, and training stalls.
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
                nn.init.zeros_(part.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x).flatten(1)
        return self.fc3(self.relu(self.fc2(self.relu(self.fc1(x)))))


def vgg11(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """9,750,922 parameters at 3x32x32 and 10 classes.

    Raises:
        ConfigError: an input that is not channels, height, width of at least 32x32.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 32:
        raise ConfigError(
            [f"$.model.input: {list(input_shape)} given, vgg11 needs [channels, height, width] from 32x32 (five pools)"]
        )
    return VGG11(*input_shape, classes=classes)

"""The model."""

from torch import nn


class Net(nn.Sequential):
    """About a million parameters."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 960), nn.ReLU(), nn.Linear(960, 960), nn.ReLU(), nn.Linear(960, 10))

"""The model, the data and the local training."""

import numpy as np
import torch
from torch import nn


class Net(nn.Sequential):
    """About a million parameters."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 960), nn.ReLU(), nn.Linear(960, 960), nn.ReLU(), nn.Linear(960, 10))


def load(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The device's own examples."""
    with np.load(path) as data:
        return torch.from_numpy(data["x"]), torch.from_numpy(data["y"])


def train(
    net: nn.Module, x: torch.Tensor, y: torch.Tensor, *, epochs: int, batch: int, lr: float, momentum: float
) -> float:
    """Local epochs without the last, smaller batch; the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum)
    loss_of = nn.CrossEntropyLoss()
    losses = []
    net.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):
            if len(rows) < batch:
                continue
            optimizer.zero_grad()
            loss = loss_of(net(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return sum(losses) / len(losses)

"""Modules of the user's own for the tests of cuts in width, and what tells whether a cut is the right one."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from coordinator.models.catalog import example_input
from coordinator.submodels.build import apply_cut
from coordinator.submodels.channel_groups import ChannelMap, channel_map
from coordinator.submodels.record import Cut
from coordinator.submodels.width import random_channels, tensor_slices
from edge.contracts.manifest import InputSpec

IMAGE = InputSpec(layout="chw", shape=(3, 8, 8))


class Concatenated(nn.Module):
    """Two branches side by side, old channels behind new ones, a norm over both."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.norm = nn.BatchNorm2d(10)
        self.mixed, self.last = nn.Conv2d(10, 8, 1), nn.Conv2d(18, 5, 8)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.left(x), self.right(x)], 1)
        new = self.mixed(torch.relu(self.norm(both)))
        return self.last(torch.cat([new, both], 1)).flatten(1)


class Residual(nn.Module):
    """A stream that two blocks add to, one of them through a projection; a scale of its own per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner, self.outer = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 12, 1), nn.Conv2d(12, 8, 1)
        self.down, self.shortcut = nn.Conv2d(8, 10, 3, 2, 1), nn.Conv2d(8, 10, 1, 2)
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 10).reshape(10, 1, 1))
        self.act = nn.PReLU(10)
        self.head = nn.Linear(10 * 4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.outer(torch.tanh(self.inner(x)))
        x = self.act(self.gain * self.down(x) + self.shortcut(x))
        return self.head(x.reshape(x.shape[0], -1))


class Grouped(nn.Module):
    """Convolutions of groups, depthwise ones with and without a multiplier, a gate from halves, a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.grouped = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 12, 3, padding=1, groups=2)
        self.depthwise, self.multiplied = nn.Conv2d(12, 12, 3, padding=1, groups=12), nn.Conv2d(12, 24, 1, groups=12)
        self.halves, self.up = nn.Conv2d(24, 16, 1), nn.ConvTranspose2d(8, 6, 2, 2)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.multiplied(torch.relu(self.depthwise(torch.relu(self.grouped(self.stem(x))))))
        value, gate = self.halves(x).chunk(2, 1)
        return self.head(self.up(value * torch.sigmoid(gate)).mean((2, 3)))


class GroupNormed(nn.Module):
    """Norms over groups of channels and over each one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.groups = nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8)
        self.second, self.single = nn.Conv2d(8, 6, 1), nn.GroupNorm(6, 6)
        self.head = nn.Linear(6 * 64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.single(self.second(torch.relu(self.groups(self.first(x)))))).flatten(1))


OWN: dict[str, Callable[[], nn.Module]] = {
    "concatenated": Concatenated,
    "residual": Residual,
    "grouped": Grouped,
    "group_normed": GroupNormed,
}


def own(name: str) -> nn.Module:
    """One of :data:`OWN` with its input."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = OWN[name]()
    module.input_spec = IMAGE
    return module


def own_input(batch: int = 2) -> Tensor:
    return torch.randn(batch, *IMAGE.shape, generator=torch.Generator().manual_seed(3))


def model_input(name: str) -> Tensor:
    return example_input(name)


def random_cut(module: nn.Module, ratio: float, seed: int, channels: ChannelMap | None = None) -> Cut:
    """A cut of random channels, at least one of each group."""
    channels = channels or channel_map(module)
    counts = {group.name: max(1, round(group.size * ratio)) for group in channels.groups}
    return channels.cut(random_channels(channels, counts, seed=seed, round_index=0, device="a"))


def silenced_difference(module: nn.Module, cut: Cut, x: Tensor) -> float:
    """Largest difference between the cut module and the whole one when nothing in it reads a dropped channel.

    A dropped channel cannot matter once no layer reads it, so a cut whose index sets fit together computes the same.
    """
    silent = copy.deepcopy(module).double().eval()
    state = silent.state_dict()
    for name, kept in tensor_slices(module, cut).items():
        path = name.rpartition(".")[0]
        is_transposed = isinstance(module.get_submodule(path), _ConvTransposeNd)
        dim = 0 if is_transposed else 1
        if len(kept) >= 2 and kept[dim] is not None:
            unread = torch.ones(state[name].shape[dim], dtype=torch.bool)
            unread[torch.from_numpy(kept[dim])] = False
            state[name].index_fill_(dim, torch.nonzero(unread)[:, 0], 0.0)
    built = apply_cut(module, cut).double().eval()
    x = x.double() if x.is_floating_point() else x
    with torch.no_grad():
        return float((silent(x) - built(x)).abs().max())

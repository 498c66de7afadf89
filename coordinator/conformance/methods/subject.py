"""A method that is checked, the small network it is checked on, and what devices would send of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from coordinator.conformance.findings import Failed
from coordinator.methods.method import Method
from coordinator.models.vit import Block
from coordinator.rounds.staleness import beside
from coordinator.submodels.record import cut_to_json
from coordinator.submodels.values import State, Submodel, Tensors, Update
from edge.contracts.manifest import InputSpec
from edge.contracts.packing import MASK

SEED = 7


class Net(nn.Module):
    """Convolutions with norms, a shortcut, linear layers: something for every family to cut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, 1, 1)
        self.bn2 = nn.BatchNorm2d(16)
        self.conv3 = nn.Conv2d(16, 32, 3, 2, 1)
        self.input_spec = InputSpec(layout="chw", shape=(3, 4, 4))
        self.fc1 = nn.Linear(32 * 4, 64)
        self.fc2 = nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, 3, 4, 4] -> [B, 5]."""
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(x + self.bn2(self.conv2(x)))
        x = torch.relu(self.conv3(x)).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))


class Transformer(nn.Module):
    """Two blocks behind patches, for methods that add to blocks alone; input and classifier are named as Net's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 2, 2)
        self.position = nn.Parameter(torch.randn(1, 4, 16))
        self.input_spec = InputSpec(layout="chw", shape=(3, 4, 4))
        self.blocks = nn.Sequential(Block(16, 2), Block(16, 2))
        self.fc2 = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, 3, 4, 4] -> [B, 5]."""
        return self.fc2(self.blocks(self.embed(x).flatten(2).transpose(1, 2) + self.position).mean(1))


@dataclass(frozen=True)
class Subject:
    """One method with a network and options.

    Attributes:
        name: as a run file has it.
        module: gives the network, with the same weights each time.
        options: those it is tried with.
    """

    name: str
    method: type[Method]
    module: Callable[[], nn.Module]
    options: Mapping[str, Any] = field(default_factory=dict)

    def built(self, options: Mapping[str, Any] | None = None) -> tuple[Method, State]:
        """The method and its first state; ``options`` beside the subject's own."""
        method = self.made(options)
        return method, method.init()

    def made(self, options: Mapping[str, Any] | None = None) -> Method:
        """The method alone, as a coordinator that goes on with a run has it."""
        return self.method(self.module(), {**self.options, **(options or {})})

    def batch(self) -> torch.Tensor:
        """Two examples that the network takes."""
        spec: InputSpec = self.module().input_spec
        if spec.layout == "tokens":
            return torch.ones(2, *spec.shape, dtype=torch.int64)
        return torch.ones(2, *spec.shape)


def seeded(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """``build`` with torch's generator at the same place each time, and put back where it was."""

    def module() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return build()

    return module


def cut(method: Method, state: State, index: int, device: str = "pi-01") -> Submodel:
    """What ``device`` is sent in round 0 at the level of that place in the ladder."""
    return method.cut(state, method.levels()[index], round_index=0, device=device, seed=SEED)


def untrained(method: Method, state: State, index: int, device: str = "pi-01", examples: int = 4) -> Update:
    """What a device reports that trained nothing: its trained parameters and running statistics."""
    submodel = cut(method, state, index, device)
    tensors = {
        name: value
        for name, value in submodel.tensors.items()
        if name not in submodel.program.frozen and not name.endswith("num_batches_tracked")
    }
    return Update(device, submodel.level, submodel.cut, tensors, examples)


def trained(submodel: Submodel, seed: int) -> dict[str, np.ndarray]:
    """What a device could report: everything it may change, changed; statistics stay positive, masked entries 0."""
    generator, frozen = np.random.default_rng(seed), {*submodel.program.frozen}
    changed = {}
    for name, value in sorted(submodel.tensors.items()):
        if name in frozen or name.endswith(MASK):
            continue
        if value.dtype.kind in "iu":
            changed[name] = value + 4
            continue
        step = generator.random(value.shape, np.float32) * np.float32(0.1)
        changed[name] = value + step * submodel.tensors.get(name + MASK, np.ones(value.shape, bool))
    return changed


def trained_updates(
    method: Method, state: State, today: State | None = None, weight: float = 1.0, *, is_trained: bool = True
) -> Iterator[Update]:
    """Of two devices of every level, trained from ``state``; rebased to ``today`` when that is given.

    Args:
        is_trained: False for updates with the values that were sent.

    Raises:
        Failed: the cut of a round is another one for a later state.
    """
    number = 0
    for index, level in enumerate(method.levels()):
        for device in (f"pi-{index}-a", f"pi-{index}-b"):
            submodel = method.cut(state, level, round_index=0, device=device, seed=SEED)
            tensors = trained(submodel, number)
            tensors = tensors if is_trained else {name: submodel.tensors[name] for name in tensors}
            update = Update(device, submodel.level, submodel.cut, tensors, num_examples=7 + number)
            if today is not None:
                now = method.cut(today, level, round_index=0, device=device, seed=SEED)
                if cut_to_json(now.cut) != cut_to_json(submodel.cut):
                    raise Failed(f"level '{level.name}', round 0, {device}: a later state has another cut")
                moved = beside(method, today, update, submodel.tensors, now.tensors, weight=weight, where=device)
                update = replace(update, tensors=moved)
            yield update
            number += 1


def same_bits(a: Tensors, b: Tensors) -> bool:
    """Whether both hold the same names, types and bytes."""
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and a[k].tobytes() == b[k].tobytes() for k in a)


def differing(a: Tensors, b: Tensors) -> str:
    """The names that differ between both, for a message."""
    names = sorted({*a} ^ {*b}) or [n for n in a if not same_bits({n: a[n]}, {n: b[n]})]
    return ", ".join(names[:5])

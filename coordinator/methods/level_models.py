"""A model of its own for every level of a ladder, and where they lie in a state: names ``model/<level>/<tensor>``.

The papers call them prototypes: groups of devices whose models have one shape. Here a prototype is the network that a
width ratio leaves of the whole model. Models of different levels share no values after the first round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import nn

from coordinator.aggregation.accumulator import Accumulator, Rule
from coordinator.aggregation.parts import check_finite
from coordinator.aggregation.weighted_mean import WeightedMean
from coordinator.methods.fedavg import examples
from coordinator.methods.width_ladder import WidthLadder
from coordinator.submodels.build import apply_cut
from coordinator.submodels.values import Level, State, Tensors, Update
from coordinator.submodels.width import cut_tensors
from edge.contracts.errors import UpdateRejected

if TYPE_CHECKING:
    import numpy as np

_MODEL = "model/"


def owned(extra: Tensors, owner: str) -> dict[str, np.ndarray]:
    """The tensors in a state's ``extra`` under ``owner``, a prefix that ends in a slash, without it."""
    return {name.removeprefix(owner): value for name, value in extra.items() if name.startswith(owner)}


def under(owner: str, tensors: Tensors) -> dict[str, np.ndarray]:
    """The reverse of :func:`owned`."""
    return {owner + name: value for name, value in tensors.items()}


class LevelModels:
    """The models of one ladder.

    Args:
        server_apart: the server's model is none of the levels', whatever their ratios (Fed-ET). Otherwise it is the
            largest level's.
    """

    def __init__(self, ladder: WidthLadder, *, server_apart: bool) -> None:
        self._ladder = ladder
        self._apart = server_apart
        self._modules: dict[Level, nn.Module] = {}

    def init(self) -> State:
        """Every level's part of the module's own initial weights: its first channels."""
        state = self._ladder.init()
        extra: dict[str, np.ndarray] = {}
        for level in self._kept():
            part = cut_tensors(state.tensors, self._ladder.slices(self._ladder.first(level)))
            extra.update(under(_owner(level), part))
        return State(state.tensors, extra)

    def of(self, state: State, level: Level) -> Tensors:
        """The level's model.

        Raises:
            PlanError: a level the ladder does not have.
        """
        self._ladder.counts(level)
        return owned(state.extra, _owner(level)) if level in self._kept() else state.tensors

    def replaced(self, state: State, models: Mapping[Level, Tensors], *, server: Tensors | None = None) -> State:
        """``state`` with other models for some levels, and for the server where it is apart."""
        extra = dict(state.extra)
        tensors = state.tensors if server is None else server
        for level, model in models.items():
            if level in self._kept():
                extra.update(under(_owner(level), model))
            else:
                tensors = model
        return State(tensors, extra, state.round)

    def held(self, state: State, update: Update, *, where: str) -> dict[str, np.ndarray]:
        """The whole model that a device has after its update: what it sent, and what it was given of all else.

        Raises:
            PlanError: a level the ladder does not have.
            UpdateRejected: a tensor its level does not have, a wrong shape, or values that are not finite.
        """
        given = self.of(state, update.level)
        for name, value in update.tensors.items():
            if name not in given or given[name].shape != value.shape:
                expected = f"shape {given[name].shape}" if name in given else "no such tensor"
                raise UpdateRejected(
                    f"{where}: '{name}' has shape {value.shape}, level '{update.level.name}' has {expected}; "
                    "re-plan the device"
                )
            check_finite(name, value, where=where)
        return {**given, **update.tensors}

    def module(self, level: Level) -> nn.Module:
        """A torch module in the level's shapes, its values anybody's: whoever uses it loads them first."""
        if level not in self._modules:
            self._modules[level] = apply_cut(self._ladder.module, self._ladder.first(level))
        return self._modules[level]

    def with_statistics(self, state: State, updates: Iterable[Update]) -> State:
        """Static statistics of every level: the mean over its devices, weighted by ``num_examples``."""
        means = GroupMeans(self, state)
        for update in updates:
            means.add(update, examples(update), where=f"device {update.device}, statistics")
        return self.replaced(state, means.result())

    def _kept(self) -> tuple[Level, ...]:
        return self._ladder.levels if self._apart else self._ladder.levels[1:]


@dataclass
class GroupMeans:
    """The mean of every level's devices, or what ``rule`` makes of them; streamed."""

    models: LevelModels
    state: State
    rule: Rule | None = None
    _means: dict[Level, Accumulator | WeightedMean] = field(default_factory=dict)

    def add(self, update: Update, weight: float, *, where: str) -> None:
        """Add one device's tensors: buffers by ``num_examples``, all others with ``weight``.

        Raises:
            PlanError: a level that is not there.
            UpdateRejected: an update that does not fit its level's model, or without examples.
        """
        if update.level not in self._means:
            new: Rule | type[WeightedMean] = self.rule or WeightedMean
            self._means[update.level] = new(self.models.of(self.state, update.level))
        buffers = {name for name, _ in self.models.module(update.level).named_buffers()}
        number = examples(update)
        weights = {name: number if name in buffers else weight for name in update.tensors}
        self._means[update.level].add(update.tensors, weights, where=where)

    def result(self) -> dict[Level, dict[str, np.ndarray]]:
        """The means of the levels that had devices."""
        return {level: mean.result() for level, mean in self._means.items()}


def _owner(level: Level) -> str:
    return f"{_MODEL}{level.name}/"

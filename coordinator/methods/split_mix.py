"""Split-Mix: several small networks, the atoms, none of whose weights are shared; a device trains as many as it can.

The atoms are disjoint windows of the model's channels without the weights between them. On every batch each atom a
device holds does a step of its own. Evaluated is the ensemble of all atoms, their mean logits, and the ensembles of as
many atoms as each level holds.
Source: Hong et al., "Efficient split-mix federated learning for on-demand and in-situ customization" (ICLR 2022);
FedHM for atoms of width 0.35 in numbers that match a budget (9, 3, 2, 1), where atoms start from overlapping windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.aggregation.accumulator import Rule
from coordinator.aggregation.weighted_mean import WeightedMean
from coordinator.config.method_options import LOSSES, NORMS, Options
from coordinator.methods.fedavg import examples
from coordinator.methods.width_ladder import ROUNDINGS, WidthLadder
from coordinator.submodels.build import module_tensors
from coordinator.submodels.channel_groups import ChannelGroup
from coordinator.submodels.record import Cut, LayerCut
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Update, Variant, require_level
from coordinator.submodels.width import cut_tensors, tensor_slices, window
from edge.contracts.errors import ConfigError, PlanError, UpdateRejected
from edge.contracts.streams import permutation, stream_seed

if TYPE_CHECKING:
    from torch import nn

DEFAULT_WIDTH = 0.25


class SplitMix:
    """Options, in kebab case:

    - ``width``: ratio of an atom's channels to the model's, 1/4 by default; ``rounding``: ``round``, ``ceil``,
      ``floor``.
    - ``atoms``: how many there are; by default as many as fit side by side, the whole part of 1 / width, and no fewer
      than the largest level.
    - ``levels``: atoms a device trains; by default all of them, half of them, and one.
    - ``loss``, ``norm``: as FedAvg's.
    - ``weight-by-examples``: weigh devices by ``num_examples``; false.
    """

    name = "split_mix"
    synchronous_only = ""
    needs_each_update = "its devices hold different parts of the model and every entry has its own count"

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a module that cannot be cut so."""
        read = Options(self.name, options)
        found = read.number("width", DEFAULT_WIDTH, low=0, strict=True)
        width = DEFAULT_WIDTH if found is None else found
        given = read.numbers("levels", (1,), low=1)
        atoms = read.integer("atoms", max(math.floor(1 / width), math.ceil(max(given))), low=1)
        rounding = read.choice("rounding", ROUNDINGS, "round")
        self._by_examples = read.flag("weight-by-examples", False)
        self._loss, self._norm = read.choice("loss", LOSSES, "cross_entropy"), read.choice("norm", NORMS, "running")
        read.finish()
        counts = given if "levels" in options else (atoms, atoms // 2, 1)
        self._refuse_levels(width, atoms, counts)
        self.atoms = atoms
        self._levels = tuple(_level(int(count), atoms) for count in sorted({*counts} - {0}, reverse=True))
        self._module = module
        self._ladder = WidthLadder(
            self.name, module, (width,), rounding=rounding, by_examples=self._by_examples, shrink=False
        )
        self._atom: Cut = self._ladder.first(self._ladder.levels[0])
        self._buffers = {name for name, _ in module.named_buffers()}

    def init(self) -> State:
        """Every atom's window of the module's own initial weights."""
        dense = module_tensors(self._module)
        width = self._ladder.levels[0]
        counts = self._ladder.counts(width)
        tensors = {}
        for atom in range(self.atoms):
            kept = window(self._ladder.channels, counts, partial(_start, atom, counts))
            slices = tensor_slices(self._module, self._ladder.cut(width, kept))
            tensors.update({_own(atom, name): value for name, value in cut_tensors(dense, slices).items()})
        return State(tensors)

    def levels(self) -> tuple[Level, ...]:
        """One level per number of atoms, largest first."""
        return self._levels

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """As many atoms as the level has, drawn from the stream of (seed, round, device).

        Raises:
            PlanError: a level this ladder does not have.
        """
        require_level("split_mix", level, self._levels)
        order = permutation(stream_seed(seed, "atoms", round_index, device), self.atoms)
        return self._cut(sorted(order[: int(level.value)].tolist()))

    def program(self, cut: Cut) -> DeviceProgram:
        """One step of every atom held on each batch."""
        count = len(cut[""].atoms)
        variants = tuple(Variant(f"atom{i}", submodule=f"atoms.{i}") for i in range(count)) if count > 1 else ()
        return DeviceProgram(loss=self._loss, norm=self._norm, variants=variants, turns="each" if variants else "train")

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The drawn atoms' weights."""
        cut = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        return self._submodel(state, level, cut, self.program(cut))

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """Every atom the mean over the devices that trained it; running statistics weighted by ``num_examples``.

        Raises:
            PlanError: no update.
            UpdateRejected: an update that does not fit its atoms, or without examples.
        """
        mean = (rule or WeightedMean)(state.tensors)
        count = 0
        for update in updates:
            where = f"device {update.device}, round {state.round}"
            number = examples(update)
            named = self._as_held(update, where=where)
            weight = number if self._by_examples else 1
            weights = {name: number if self._is_buffer(name) else weight for name in named}
            mean.add(named, weights, where=where)
            count += 1
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        return State(mean.result(), state.extra, state.round + 1)

    def with_statistics(self, state: State, updates: Iterable[Update]) -> State:
        """Every atom's static statistics, from the devices that hold it."""
        mean = WeightedMean(state.tensors)
        for update in updates:
            where = f"device {update.device}, statistics"
            mean.add(self._as_held(update, where=where), examples(update), where=where)
        return State(mean.result(), state.extra, state.round)

    def refresh(self, state: State) -> State:
        """The state itself; every round deals the atoms anew."""
        return state

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """``server``, the ensemble of all atoms, and that of the first atoms of every level."""
        program = DeviceProgram(loss=self._loss, norm=self._norm)
        whole = _level(self.atoms, self.atoms)
        models = {"server": Submodel(self._cut(range(self.atoms)), whole, state.tensors, program)}
        for level in self._levels:
            models[level.name] = self._submodel(state, level, self._cut(range(int(level.value))), program)
        return models

    def _cut(self, atoms: Iterable[int]) -> Cut:
        return {"": LayerCut(atoms=tuple(atoms)), **self._atom}

    def _submodel(self, state: State, level: Level, cut: Cut, program: DeviceProgram) -> Submodel:
        names = [name.removeprefix("atoms.0.") for name in state.tensors if name.startswith("atoms.0.")]
        tensors = {
            _own(place, name): state.tensors[_own(atom, name)]
            for place, atom in enumerate(cut[""].atoms)
            for name in names
        }
        return Submodel(cut, level, tensors, program)

    def _as_held(self, update: Update, *, where: str) -> dict[str, np.ndarray]:
        """The update's tensors under the names of the server's atoms."""
        atoms = update.cut[""].atoms if "" in update.cut else ()
        named = {}
        for name, value in update.tensors.items():
            head, _, rest = name.partition(".")
            place, _, own = rest.partition(".")
            if head != "atoms" or not place.isdecimal() or int(place) >= len(atoms):
                raise UpdateRejected(
                    f"{where}: tensor '{name}' is of none of its {len(atoms)} atoms; re-plan the device"
                )
            named[_own(atoms[int(place)], own)] = value
        return named

    def _is_buffer(self, name: str) -> bool:
        return name.split(".", 2)[2] in self._buffers

    def _refuse_levels(self, width: float, atoms: int, counts: Iterable[float]) -> None:
        problems = []
        if width >= 1:
            problems.append(f"$.method.width: {width:g} given, a ratio above 0 and below 1 expected")
        problems += [
            f"$.method.levels: {count:g} given, whole numbers of atoms up to {atoms} expected"
            for count in counts
            if count != int(count) or count > atoms
        ]
        if problems:
            raise ConfigError(problems)


def _level(count: int, atoms: int) -> Level:
    return Level("1 atom" if count == 1 else f"{count} atoms", float(count), min(1.0, count / atoms))


def _start(atom: int, counts: Mapping[str, int], group: ChannelGroup) -> int:
    return atom * counts[group.name]


def _own(atom: int, name: str) -> str:
    return f"atoms.{atom}.{name}"

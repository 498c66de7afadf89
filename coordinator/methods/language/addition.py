"""What adapter, prefix and prompt of a language model share: a state of additions alone, and one mean, entry by entry.

The base is a file that devices map; additions travel up and down. Where sizes or depths mix, smaller ones hold the
first units and the last blocks of larger ones, and an entry is averaged over the devices that have it, as in HeteroFL.
Source: HeteroFL (Diao et al., ICLR 2021), section 3; the papers of each method for what is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from coordinator.aggregation.accumulator import Rule
from coordinator.aggregation.entrywise import EntrywiseMean
from coordinator.config.method_options import Options
from coordinator.methods.additions import initial_seed
from coordinator.methods.fedavg import examples
from coordinator.methods.language.ladder import whole_numbers
from coordinator.submodels.build import apply_cut
from coordinator.submodels.lora import gaussian_rows
from coordinator.submodels.record import Cut, LayerCut
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Update, require_level
from edge.contracts.errors import ConfigError, PlanError, UpdateRejected
from edge.contracts.streams import stream_seed
from export.language.additions import is_addition

if TYPE_CHECKING:
    from coordinator.submodels.narrowed import Slice
    from export.language.causal_model import CausalModel

DEVIATION = 0.02
"""Of the first values of virtual positions: that of the embedding in :mod:`coordinator.language.random_weights`."""


class LanguageAddition:
    """A method but for its additions. Options of every such method, in kebab case:

    - ``levels``: sizes; one of all devices, unless the method says that they mix.
    """

    name: ClassVar[str]
    synchronous_only: ClassVar[str] = ""
    needs_each_update: ClassVar[str] = ""
    default_size: ClassVar[int]
    unit: ClassVar[str]
    """What a level counts, in the name of the level."""
    one_size_only: ClassVar[str] = ""
    """Why sizes do not mix; empty where they do."""
    has_depth: ClassVar[bool] = False
    """Whether additions are of blocks, and so may be of the last ones alone."""

    def __init__(self, module: CausalModel, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options."""
        read, blocks = Options(self.name, options), module.architecture.layers
        sizes = whole_numbers(read, "levels", (self.default_size,))
        if self.one_size_only and len(sizes) > 1:
            raise ConfigError(
                [f"$.method.levels: {sizes} given, {self.name} takes one: {self.one_size_only}; they mix in adapter"]
            )
        depths = whole_numbers(read, "depths", (blocks,)) if self.has_depth else [blocks]
        read.finish()
        if depths[0] > blocks:
            raise ConfigError([f"$.method.depths: {depths[0]} given, the model has {blocks} blocks; give at most that"])
        self.architecture = module.architecture
        self._largest = sizes[0]
        found = []
        for depth in depths:
            for size in sizes:
                name = f"{size} {self.unit}" + (f", depth {depth}" if len(depths) > 1 else "")
                level = Level(name, size, size * depth / (sizes[0] * depths[0]))
                record = self.record(size)
                found.append((level, depth, {path: record for path in self.places(blocks, depth)}))
        found.sort(key=lambda entry: (-entry[0].capacity, -entry[1]))
        self._cuts: dict[Level, Cut] = {level: cut for level, _, cut in found}
        self._whole = {path: self.record(sizes[0]) for path in self.places(blocks, depths[0])}
        built = apply_cut(module, self._whole)
        self._shapes = {n: tuple(v.shape) for n, v in built.named_parameters() if is_addition(n)}
        self._base = tuple(name for name, _ in module.named_parameters())
        self._seed = initial_seed(module)

    def record(self, size: int) -> LayerCut:
        """The addition of so many units or positions."""
        raise NotImplementedError

    def places(self, blocks: int, depth: int) -> list[str]:
        """Paths of what is extended in the last ``depth`` of ``blocks`` blocks."""
        raise NotImplementedError

    def drawn(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """First values of tensor ``name``."""
        raise NotImplementedError

    def held(self, name: str, size: int) -> Slice | None:
        """Which entries of tensor ``name`` a device with ``size`` has; None: all."""
        return None

    def init(self) -> State:
        """First values of the largest additions, drawn by the module's seed."""
        return State({name: self.drawn(name, shape) for name, shape in self._shapes.items()})

    def levels(self) -> tuple[Level, ...]:
        """A level for each size and depth, largest first."""
        return tuple(self._cuts)

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """Additions of the level's size in its blocks; the same for every round and device.

        Raises:
            PlanError: a level that there is not.
        """
        require_level(self.name, level, self._cuts)
        return self._cuts[level]

    def program(self, cut: Cut) -> DeviceProgram:
        """Training of the additions alone, beside a base that is mapped."""
        return DeviceProgram(frozen=self._base, has_base=True)

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The first units of the last blocks' additions."""
        cut = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        slices = self._slices(level)
        tensors = {
            name: np.ascontiguousarray(state.tensors[name][_index(slices[name])])
            if name in slices
            else state.tensors[name]
            for name in self._names(cut)
        }
        return Submodel(cut, level, tensors, self.program(cut))

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """The mean of each entry over the devices that have it, weighted by ``num_examples``; others stay.

        Raises:
            PlanError: no update, or one of another level.
            UpdateRejected: an update that does not fit its cut, or without examples.
        """
        mean = (rule or EntrywiseMean)(state.tensors)
        count = 0
        for update in updates:
            where = f"device {update.device}, round {state.round}"
            cut = self.cut_shape(update.level, round_index=state.round, device=update.device, seed=0)
            if missing := [name for name in self._names(cut) if name not in update.tensors]:
                raise UpdateRejected(f"{where}: update has no '{missing[0]}', its level does; re-plan the device")
            mean.add(update.tensors, examples(update), where=where, slices=self._slices(update.level))
            count += 1
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        return State({**state.tensors, **mean.result()}, state.extra, state.round + 1)

    def refresh(self, state: State) -> State:
        """The state itself."""
        return state

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """``server``, the base with the largest additions."""
        level = next(iter(self._cuts))
        return {"server": Submodel(self._whole, level, state.tensors, self.program(self._whole))}

    def _names(self, cut: Cut) -> list[str]:
        """Tensors of a cut's additions."""
        return [name for name in self._shapes if any(name.startswith(f"{path}.") for path in cut)]

    def _slices(self, level: Level) -> dict[str, Slice]:
        """Of the tensors of which a level has less than all."""
        if level.value == self._largest:
            return {}
        kept = {name: self.held(name, int(level.value)) for name in self._names(self._cuts[level])}
        return {name: part for name, part in kept.items() if part is not None}

    def normal(self, name: str, shape: tuple[int, ...], deviation: float) -> np.ndarray:
        """Normal values of ``deviation`` by the module's seed; fewer rows are the first ones of more."""
        rows = gaussian_rows(stream_seed(self._seed, f"added {name}"), shape[0], shape[1])
        return (rows * np.float32(deviation * shape[1] ** 0.5)).astype(np.float32)


def _index(kept: Slice) -> tuple[Any, ...]:
    return tuple(slice(None) if part is None else part for part in kept)


def blocks_of(blocks: int, depth: int) -> range:
    """Numbers of the last ``depth`` blocks."""
    return range(blocks - depth, blocks)

"""What the methods of language models share: a state of factors alone, cuts of it, and one mean over a round's updates.

The state holds ``<path>.u`` [outputs, R] and ``<path>.v`` [R, inputs] of every adapted layer, the difference learnt as
its components, largest first; R is as large as that difference needs. The base is a file that devices map: no method
reads or holds its values.
"""

# Dims: O outputs, I inputs, R rank.

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from coordinator.aggregation.accumulator import Rule
from coordinator.config.method_options import Options
from coordinator.methods.additions import initial_seed
from coordinator.methods.fedavg import examples
from coordinator.methods.language.ladder import Ladder
from coordinator.submodels.lora import FORM, gaussian_rows
from coordinator.submodels.record import Cut, Factor, LayerCut
from coordinator.submodels.spectrum import Spectrum
from coordinator.submodels.stacked_factors import FactorStack
from coordinator.submodels.values import (
    DeviceProgram,
    Level,
    NotFinite,
    State,
    Submodel,
    Tensors,
    Update,
    require_level,
)
from edge.contracts.errors import PlanError, UpdateRejected
from edge.contracts.streams import stream_seed

if TYPE_CHECKING:
    from export.language.causal_model import CausalModel

_FULL = Level("full", math.inf, 1.0)


class LanguageMethod:
    """A method but for what it makes of a round's updates. Options of every such method, in kebab case:

    - ``levels``: ranks; 2, 4, 8 and 16.
    - ``depths``: the last so many blocks have factors, one number or several; all of them. A level is a rank and a
      depth; no device runs a backward pass below its own.
    - ``below``: what a device holds of the blocks below its depth: ``base`` alone, so that what enters its first
      trained block is the same in every round, or the ``factors`` that others learnt there, frozen; ``base``.
    - ``layout``: name patterns of the linear layers with factors; the projections into and out of attention.
    - ``server-rank``: components that the server keeps of a layer's difference; 0, all that there are.
    """

    name: ClassVar[str]
    synchronous_only: ClassVar[str] = (
        "what a late product of factors moved would be told from dense differences, which no language model has here"
    )
    needs_each_update: ClassVar[str] = (
        "its aggregate is a mean of products of factors, which the mean of the factors does not determine"
    )
    has_frozen_rows: ClassVar[bool] = False
    """Whether v stays as it was drawn."""

    def __init__(self, module: CausalModel, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError when no layer can be adapted."""
        read = Options(self.name, options)
        self.ladder = Ladder(module, read)
        self._server_rank = read.integer("server-rank", 0, low=0)
        self.read_own(read)
        read.finish()
        self._shapes: dict[str, tuple[int, int]] = {}
        for path in self.ladder.paths:
            outputs, inputs = module.get_submodule(path).weight.shape
            self._shapes[path] = int(outputs), int(inputs)
        self._base = tuple(name for name, _ in module.named_parameters())
        self._seed = initial_seed(module)

    def read_own(self, read: Options) -> None:
        """Read the options only this method has."""

    def init(self) -> State:
        """Factors of one component whose product is zero."""
        tensors: dict[str, np.ndarray] = {}
        for path, (outputs, inputs) in self._shapes.items():
            tensors |= {f"{path}.u": np.zeros((outputs, 1), np.float32), f"{path}.v": self.rows(path, 1, self._seed, 0)}
            assert tensors[f"{path}.v"].shape == (1, inputs)
        return State(tensors)

    def levels(self) -> tuple[Level, ...]:
        """A level for each rank and depth, largest first."""
        return tuple(self.ladder.cuts)

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """Factors of the level's rank in its blocks; the same for every round and device.

        Raises:
            PlanError: a level this ladder does not have.
        """
        require_level(self.name, level, self.ladder.cuts)
        return self.ladder.cuts[level]

    def program(self, cut: Cut) -> DeviceProgram:
        """Training of the factors alone, beside a base that is mapped."""
        held = [f"{path}.u" for path, record in cut.items() if record.frozen]
        held += [f"{path}.v" for path, record in cut.items() if record.frozen or self.has_frozen_rows]
        return DeviceProgram(frozen=(*self._base, *held), has_base=True)

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The first components of what was learnt; new ones where there are fewer: u zero, v drawn for the round."""
        cut = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        tensors: dict[str, np.ndarray] = {}
        for path, record in cut.items():
            assert record.factor is not None
            u_OR, v_RI = self.first(state, path, record.factor.rank)
            rank, held = record.factor.rank, len(v_RI)
            u = np.zeros((len(u_OR), rank), np.float32)
            u[:, :held] = u_OR
            v = self.rows(path, rank, seed, round_index)
            v[:held] = v_RI
            tensors |= {f"{path}.u": u, f"{path}.v": v}
        return Submodel(cut, level, tensors, self.program(cut))

    def first(self, state: State, path: str, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """The ``rank`` largest components of a layer's difference, fewer where it has fewer."""
        u_OR, v_RI = state.tensors[f"{path}.u"], state.tensors[f"{path}.v"]
        held = int(np.any(u_OR[:, :rank] != 0, axis=0).sum())
        return u_OR[:, :held], v_RI[:held]

    def rows(self, path: str, rank: int, seed: int, round_index: int) -> np.ndarray:
        """v of components that nobody has trained, [rank, I]: fewer are the first ones of more, on every device."""
        return gaussian_rows(stream_seed(seed, f"lora {path}", round_index), rank, self._shapes[path][1])

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """The new factors; consumes ``updates`` in order, sums in float64.

        Raises:
            PlanError: no update, or a rule other than the mean.
            UpdateRejected: an update that does not fit its cut, or without examples.
        """
        if rule is not None:
            raise PlanError(f"{self.name} averages products of factors; $.aggregation.rule must be mean")
        stacks = {path: FactorStack(shape) for path, shape in self._shapes.items()}
        weights = dict.fromkeys(self._shapes, 0.0)
        sent: dict[str, np.ndarray] = {}
        count = 0
        for update in updates:
            where = f"device {update.device}, round {state.round}"
            weight = self.weight(update.level, examples(update))
            for path, u_OR, v_RI in self._factors(state, update, where):
                stacks[path].add(u_OR, v_RI, weight)
                weights[path] += weight
                shares = sent.setdefault(path, np.zeros(state.tensors[f"{path}.u"].shape[1]))
                shares[: u_OR.shape[1]] += weight
            count += 1
        if not count:
            raise PlanError(f"round {state.round}: no updates to aggregate; repeat the round")
        tensors = dict(state.tensors)
        for path, total in weights.items():
            if not total:
                continue  # no device of this round had factors there
            stacks[path].scale(1 / total)
            self.keep_unsent(state, path, stacks[path], sent[path] / total)
            tensors |= self.components(path, stacks[path].spectrum(self._server_rank))
        return State(tensors, state.extra, state.round + 1)

    def weight(self, level: Level, num_examples: int) -> float:
        """What a device's product counts in the mean over those that have the layer."""
        return float(num_examples)

    def keep_unsent(self, state: State, path: str, stack: FactorStack, shares_R: np.ndarray) -> None:
        """Add to the mean what devices were not sent of the state's difference; nothing, unless a method says so.

        Args:
            shares_R: for each component of the state the share of the mean's devices that got it.
        """

    def components(self, path: str, spectrum: Spectrum) -> dict[str, np.ndarray]:
        """A layer's difference as the state holds it.

        Raises:
            NotFinite: its values left float32.
        """
        if not len(spectrum.values_R):
            return {f"{path}.u": np.zeros((self._shapes[path][0], 1), np.float32)} | {
                f"{path}.v": self.rows(path, 1, self._seed, 0)
            }
        found = {f"{path}.u": spectrum.left_NR.astype(np.float32), f"{path}.v": spectrum.right_RM.astype(np.float32)}
        if not all(np.isfinite(value).all() for value in found.values()):
            raise NotFinite(f"layer '{path}': the mean of the devices' products is not finite; lower $.training.lr")
        return found

    def refresh(self, state: State) -> State:
        """The state itself: its components are in order already."""
        return state

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """``server``: the base with all that was learnt."""
        ranks = {path: state.tensors[f"{path}.u"].shape[1] for path in self._shapes}
        cut = {path: LayerCut(factor=Factor(FORM, tuple(range(rank)))) for path, rank in ranks.items()}
        return {"server": Submodel(cut, _FULL, state.tensors, self.program(cut))}

    def _factors(self, state: State, update: Update, where: str) -> Iterable[tuple[str, np.ndarray, np.ndarray]]:
        """(Path, u, v) of every layer of an update."""
        cut = self.cut_shape(update.level, round_index=state.round, device=update.device, seed=0)  # refuses strangers
        for path, record in cut.items():
            if record.frozen:
                continue
            assert record.factor is not None
            outputs, inputs = self._shapes[path]
            wanted = {f"{path}.u": (outputs, record.factor.rank), f"{path}.v": (record.factor.rank, inputs)}
            found = self.whole_factors(state, path, record.factor.rank, update.tensors)
            for name, shape in wanted.items():
                value = found.get(name)
                if value is None or value.shape != shape:
                    got = "nothing" if value is None else list(value.shape)
                    raise UpdateRejected(
                        f"{where}: update for '{name}' has {got}, {list(shape)} expected; re-plan the device"
                    )
            yield path, found[f"{path}.u"], found[f"{path}.v"]

    def whole_factors(self, state: State, path: str, rank: int, tensors: Tensors) -> Tensors:
        """An update's factors of a layer, with what the device did not send."""
        return tensors

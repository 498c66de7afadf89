"""Iterative magnitude pruning: every layer loses its smallest weights at fixed rounds of the first half of training.

Source: the baseline of PruneFL, section VI; Frankle and Carbin, "The lottery ticket hypothesis", for the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from coordinator.methods.method import DeviceProgram, Level, State, Submodel, Update
from coordinator.methods.options import Options
from coordinator.methods.sparse import SparseModel
from coordinator.pruning.masks import prune_by_magnitude
from coordinator.submodels.record import Cut
from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn


class IterativeMagnitude:
    """Options, in kebab case:

    - ``density``: share of the prunable weights left in the end; 0.1.
    - ``rounds``: of the whole training, half of which is for pruning; 1000.
    - ``prunings``: how many; 20. Each leaves every layer ``density ** (1 / prunings)`` of what it had.
    - ``loss``, ``norm``: as FedAvg's.
    """

    name = "iterative_magnitude"

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a model without prunable layers."""
        read = Options(self.name, options)
        self._model = SparseModel(module, read)
        self._model.name = self.name
        density = read.number("density", 0.1, low=0, strict=True)
        rounds = read.integer("rounds", 1000, low=1)
        self._prunings = read.integer("prunings", 20, low=1)
        read.finish()
        if density is None or density > 1 or rounds < 2 * self._prunings:
            raise ConfigError(
                [
                    f"$.method.density: {density} with rounds {rounds}; give a density up to 1 and at least "
                    f"{2 * self._prunings} rounds"
                ]
            )
        self._keep = density ** (1 / self._prunings)
        self._interval = rounds // 2 // self._prunings

    def init(self) -> State:
        """The module's own initial weights, everything kept."""
        return self._model.first_state()

    def levels(self) -> tuple[Level, ...]:
        """One level: the mask is everybody's."""
        return self._model.levels()

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """A mask on every prunable layer."""
        return self._model.masked_cut(level, scored=False)

    def program(self, cut: Cut) -> DeviceProgram:
        """See :meth:`SparseModel.program`."""
        return self._model.program(cut)

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The masked model with its masks."""
        return self._model.submodel(state, self._model.masked_cut(level, scored=False))

    def aggregate(self, state: State, updates: Iterable[Update]) -> State:
        """The mean of the kept weights; raises as FedAvg's."""
        return self._model.mean(state, updates)[0]

    def refresh(self, state: State) -> State:
        """Prune when it is time."""
        done, rest = divmod(state.round, self._interval)
        if rest or not 1 <= done <= self._prunings:
            return state
        return self._model.with_masks(state, prune_by_magnitude(state.tensors, self._model.masks(state), self._keep))

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """The masked model as ``server``."""
        return self._model.eval_models(state)

"""SNIP: one dense round, then the weights whose loss would suffer most from their removal, for good.

Source: Lee et al., "SNIP: single-shot network pruning based on connection sensitivity"; PruneFL, section VI, for its
federated form: the gradient is what the first round moved the weights by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.methods.method import DeviceProgram, Level, State, Submodel, Update
from coordinator.methods.options import Options
from coordinator.methods.sparse import SparseModel
from coordinator.pruning.masks import top_scores
from coordinator.submodels.record import Cut
from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn


class Snip:
    """Options, in kebab case:

    - ``density``: share of the prunable weights kept; 0.1.
    - ``loss``, ``norm``: as FedAvg's.
    """

    name = "snip"

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a model without prunable layers."""
        read = Options(self.name, options)
        self._model = SparseModel(module, read)
        self._model.name = self.name
        density = read.number("density", 0.1, low=0, strict=True)
        read.finish()
        if density is None or density > 1:
            raise ConfigError([f"$.method.density: {density} given, a share above 0 and up to 1 needed"])
        self._density = density

    def init(self) -> State:
        """The module's own initial weights, everything kept."""
        return self._model.first_state()

    def levels(self) -> tuple[Level, ...]:
        """One level: the mask is everybody's."""
        return self._model.levels()

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """The whole model in the first round, then a mask on every prunable layer."""
        masked = self._model.masked_cut(level, scored=False)
        return masked if round_index else {}

    def program(self, cut: Cut) -> DeviceProgram:
        """See :meth:`SparseModel.program`."""
        return self._model.program(cut)

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The model, from the second round on with its masks."""
        shape = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        return self._model.submodel(state, shape)

    def aggregate(self, state: State, updates: Iterable[Update]) -> State:
        """The mean of the weights; after the first round also the masks. Raises as FedAvg's."""
        new, _ = self._model.mean(state, updates)
        if state.round:
            return new
        # The learning rate scales every score alike, so the step itself stands for the gradient.
        scores = {
            name: np.abs(state.tensors[name].astype(np.float64) * (new.tensors[name] - state.tensors[name]))
            for name in self._model.prunable
        }
        if not any(score.any() for score in scores.values()):
            return new  # nothing moved, so nothing tells the weights apart
        return self._model.with_masks(new, top_scores(scores, self._density))

    def refresh(self, state: State) -> State:
        """The state itself."""
        return state

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """The masked model as ``server``."""
        return self._model.eval_models(state)

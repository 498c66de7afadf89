"""SNIP: one dense round, then the weights whose loss would suffer most from their removal, for good.

Source: Lee et al., "SNIP: single-shot network pruning based on connection sensitivity"; PruneFL, section VI, for its
federated form: the gradient is what the first round moved the weights by.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from coordinator.aggregation.accumulator import Rule
from coordinator.config.method_options import Options
from coordinator.methods.sparse import SparseMethod
from coordinator.pruning.masks import top_scores
from coordinator.submodels.record import Cut
from coordinator.submodels.values import Level, State, Update
from edge.contracts.errors import ConfigError


class Snip(SparseMethod):
    """Options, in kebab case:

    - ``density``: share of the prunable weights kept; 0.1.
    - ``loss``, ``norm``, ``compact``: as every sparse method's.
    """

    name = "snip"

    def read_own(self, read: Options) -> None:
        """``density``; raises ConfigError when it is no share."""
        density = read.number("density", 0.1, low=0, strict=True)
        if density is None or density > 1:
            raise ConfigError([f"$.method.density: {density} given, a share above 0 and up to 1 needed"])
        self._density = density

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """The whole model in the first round, then a mask on every prunable layer."""
        masked = self.masked_cut(level, scored=False)
        return masked if round_index else {}

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """The mean of the weights; after the first round also the masks. Raises as FedAvg's."""
        new, _ = self.mean(state, updates, rule)
        if state.round:
            return new
        # The learning rate scales every score alike, so the step itself stands for the gradient.
        scores = {
            name: np.abs(state.tensors[name].astype(np.float64) * (new.tensors[name] - state.tensors[name]))
            for name in self.prunable
        }
        if not any(score.any() for score in scores.values()):
            return new  # nothing moved, so nothing tells the weights apart
        return self.with_masks(new, top_scores(scores, self._density))

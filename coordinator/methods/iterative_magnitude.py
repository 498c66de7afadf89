"""Iterative magnitude pruning: every layer loses its smallest weights at fixed rounds of the first half of training.

Source: the baseline of PruneFL, section VI; Frankle and Carbin, "The lottery ticket hypothesis", for the rule.
"""

from __future__ import annotations

from coordinator.config.method_options import Options
from coordinator.methods.sparse import SparseMethod
from coordinator.pruning.masks import prune_by_magnitude
from coordinator.submodels.values import State
from edge.contracts.errors import ConfigError


class IterativeMagnitude(SparseMethod):
    """Options, in kebab case:

    - ``density``: share of the prunable weights left in the end; 0.1.
    - ``rounds``: of the whole training, half of which is for pruning; 1000.
    - ``prunings``: how many; 20. Each leaves every layer ``density ** (1 / prunings)`` of what it had.
    - ``loss``, ``norm``, ``compact``: as every sparse method's.
    """

    name = "iterative_magnitude"

    def read_own(self, read: Options) -> None:
        """``density``, ``rounds``, ``prunings``; raises ConfigError when they do not go together."""
        density = read.number("density", 0.1, low=0, strict=True)
        rounds = read.integer("rounds", 1000, low=1)
        self._prunings = read.integer("prunings", 20, low=1)
        if density is None or density > 1 or rounds < 2 * self._prunings:
            raise ConfigError(
                [
                    f"$.method.density: {density} with rounds {rounds}; give a density up to 1 and at least "
                    f"{2 * self._prunings} rounds"
                ]
            )
        self._keep = density ** (1 / self._prunings)
        self._interval = rounds // 2 // self._prunings

    def refresh(self, state: State) -> State:
        """Prune when it is time."""
        done, rest = divmod(state.round, self._interval)
        if rest or not 1 <= done <= self._prunings:
            return state
        return self.with_masks(state, prune_by_magnitude(state.tensors, self.masks(state), self._keep))

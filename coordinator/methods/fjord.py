"""FjORD: a device holds the first channels it can afford and draws, for every batch, how many of them it trains.

Widths are nested, so the first channels are trained most and become the most important (ordered dropout).
Source: Horvath et al., "FjORD: fair and accurate federated learning under heterogeneous targets with ordered dropout"
(NeurIPS 2021), without its optional self-distillation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coordinator.config.method_options import Options
from coordinator.methods.width_ladder import leading_sizes
from coordinator.methods.width_method import WidthMethod
from coordinator.submodels.record import Cut, cut_digest
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Variant

if TYPE_CHECKING:
    from torch import nn


class FjORD(WidthMethod):
    """Options, in kebab case:

    - ``levels``: width ratios, by default 1, 1/2 and 1/4; a device draws among its own and all smaller ones. Without 1
      the server holds the largest level.
    - ``rounding``: ``ceil``, ``round`` or ``floor`` (SLT's code); ``concatenation`` as HeteroFL's.
    - ``optimizer``: ``round``, the default: momentum goes on from batch to batch. ``batch``: it begins at zero in every
      one, as in SLT's code, which makes a new optimizer for each; SGD's alone.
    - ``loss``, ``norm``: as FedAvg's.
    - ``weight-by-examples``: weigh devices by ``num_examples``; false.
    """

    name = "fjord"
    default_levels = (1, 0.5, 0.25)
    shrinks = True

    def read_own(self, read: Options) -> None:
        """``optimizer``."""
        self._is_fresh = read.choice("optimizer", ("round", "batch"), "round") == "batch"

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a module that cannot be nested so."""
        super().__init__(module, options)
        self._programs: dict[str, DeviceProgram] = {}
        cuts = {level: self.ladder.first(level) for level in self.levels()}
        for index, level in enumerate(self.levels()):
            variants = tuple(
                Variant(_program_name(smaller), leading_sizes(module, cuts[level], cuts[smaller]))
                for smaller in self.levels()[index + 1 :]
            )
            # SGD whose momentum is at zero before every batch steps as SGD without momentum does.
            hyper = {"momentum": 0.0} if self._is_fresh else {}
            self._programs[cut_digest(cuts[level])] = replace(
                self.plain, variants=variants, turns="draw" if variants else "train", extra_hyper=hyper
            )

    def program(self, cut: Cut) -> DeviceProgram:
        """Training with one variant per smaller level, drawn for every batch."""
        return self._programs[cut_digest(cut)]

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """``server``, which is the largest level's network where no device trains the whole, and every level."""
        whole = self.program(self.ladder.first(self.levels()[0]))
        return {"server": self.ladder.server(state, whole), **self.level_models(state)}


def _program_name(level: Level) -> str:
    return f"{level.value:g}".replace(".", "_")

"""FjORD: a device holds the first channels it can afford and draws, for every batch, how many of them it trains.

Widths are nested, so the first channels are trained most and become the most important (ordered dropout).
Source: Horvath et al., "FjORD: fair and accurate federated learning under heterogeneous targets with ordered dropout"
(NeurIPS 2021), without its optional self-distillation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from coordinator.methods.method import DeviceProgram, Level, State, Submodel, Update, Variant
from coordinator.methods.options import LOSSES, NORMS, Options
from coordinator.methods.width_ladder import WidthLadder, leading_sizes, read_width_options
from coordinator.submodels.record import Cut, cut_digest

if TYPE_CHECKING:
    from torch import nn

DEFAULT_LEVELS = (1, 0.5, 0.25)


class FjORD:
    """Options, in kebab case:

    - ``levels``: width ratios, by default 1, 1/2 and 1/4; a device draws among its own and all smaller ones. Without 1
      the server holds the largest level.
    - ``rounding``: ``ceil``, ``round`` or ``floor`` (SLT's code); ``concatenation`` as HeteroFL's.
    - ``loss``, ``norm``: as FedAvg's.
    - ``weight-by-examples``: weigh devices by ``num_examples``; false.
    """

    name = "fjord"

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a module that cannot be nested so."""
        read = Options(self.name, options)
        ratios = read.ratios("levels", DEFAULT_LEVELS)
        rounding, concatenation, by_examples = read_width_options(read)
        loss, norm = read.choice("loss", LOSSES, "cross_entropy"), read.choice("norm", NORMS, "running")
        read.finish()
        self._ladder = WidthLadder(
            self.name,
            module,
            ratios,
            rounding=rounding,
            by_examples=by_examples,
            shrink=True,
            concatenation=concatenation,
            are_given="levels" in options,
        )
        self._programs = {}
        cuts = {level: self._ladder.first(level) for level in self.levels()}
        for index, level in enumerate(self.levels()):
            variants = tuple(
                Variant(_program_name(smaller), leading_sizes(module, cuts[level], cuts[smaller]))
                for smaller in self.levels()[index + 1 :]
            )
            self._programs[cut_digest(cuts[level])] = DeviceProgram(
                loss=loss, norm=norm, variants=variants, turns="draw" if variants else "train"
            )

    def init(self) -> State:
        """The module's own initial weights."""
        return self._ladder.init()

    def levels(self) -> tuple[Level, ...]:
        """One level per ratio, largest first."""
        return self._ladder.levels

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """The level's first channels; the same for every round and device.

        Raises:
            PlanError: a level this ladder does not have.
        """
        return self._ladder.first(level)

    def program(self, cut: Cut) -> DeviceProgram:
        """Training with one variant per smaller level, drawn for every batch."""
        return self._programs[cut_digest(cut)]

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The level's part of the server's model."""
        cut = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        return self._ladder.submodel(state, level, cut, self.program(cut))

    def aggregate(self, state: State, updates: Iterable[Update]) -> State:
        """Every entry the mean over the devices that held it, whatever they drew."""
        return self._ladder.aggregate(state, updates)

    def with_statistics(self, state: State, updates: Iterable[Update]) -> State:
        """Static statistics, for every level from its own devices."""
        return self._ladder.with_statistics(state, updates)

    def refresh(self, state: State) -> State:
        """The state itself."""
        return state

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """``server``, which is the largest level's network where no device trains the whole, and every level."""
        levels = {lv.name: self.cut(state, lv, round_index=state.round, device="", seed=0) for lv in self.levels()}
        return {"server": self._ladder.server(state, self.program(self._ladder.first(self.levels()[0]))), **levels}


def _program_name(level: Level) -> str:
    return f"{level.value:g}".replace(".", "_")

"""A method that scales width, but for what makes it one: which channels a device keeps, and what is evaluated.

A subclass states its defaults and overrides :meth:`cut_shape`; everything else asks the ladder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from coordinator.aggregation.accumulator import Rule
from coordinator.config.method_options import LABEL_MASKED, LOSSES, NORMS, Options
from coordinator.methods.width_ladder import WidthLadder, read_width_options
from coordinator.submodels.record import Cut
from coordinator.submodels.values import DeviceProgram, Level, State, Submodel, Update

if TYPE_CHECKING:
    from torch import nn


class WidthMethod:
    """Options of every such method: ``levels``, ``rounding``, ``concatenation``, ``weight-by-examples``, ``loss``,
    ``norm``; a method's own docstring gives its defaults. ``report-labels``: with label-masked cross-entropy devices
    say which classes they have examples of, and a row of the classifier is the mean over those with its class; true.

    Attributes:
        default_levels, rounding, loss: defaults of the options.
        by_examples: whether devices weigh by ``num_examples`` unless said otherwise.
        shrinks: whether the server holds no more than the largest level.
    """

    name: ClassVar[str]
    synchronous_only: ClassVar[str] = ""
    needs_each_update: ClassVar[str] = "its devices hold different parts of the model and every entry has its own count"
    default_levels: ClassVar[tuple[float, ...]] = (1, 0.5, 0.25, 0.125, 0.0625)
    rounding: ClassVar[str] = "ceil"
    loss: ClassVar[str] = "cross_entropy"
    by_examples: ClassVar[bool] = False
    shrinks: ClassVar[bool] = False

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a module that cannot be cut so."""
        read = Options(self.name, options)
        ratios = self.used_ratios(read.ratios("levels", self.default_levels))
        rounding, concatenation, by_examples = read_width_options(
            read, rounding=self.rounding, by_examples=self.by_examples
        )
        loss, norm = read.choice("loss", LOSSES, self.loss), read.choice("norm", NORMS, "running")
        reports_labels = read.flag("report-labels", True) and loss == LABEL_MASKED
        self.read_own(read)
        read.finish()
        self.plain = DeviceProgram(loss=loss, norm=norm, reports_labels=reports_labels)
        self.ladder = WidthLadder(
            self.name,
            module,
            ratios,
            rounding=rounding,
            by_examples=by_examples,
            shrink=self.shrinks,
            concatenation=concatenation,
            are_given="levels" in options,
        )

    def used_ratios(self, ratios: tuple[float, ...]) -> tuple[float, ...]:
        """Those of the ratios given that become levels."""
        return ratios

    def read_own(self, read: Options) -> None:
        """Read the options only this method has."""

    def init(self) -> State:
        """The server's part of the module's own initial weights."""
        return self.ladder.init()

    def levels(self) -> tuple[Level, ...]:
        """One level per ratio, largest first."""
        return self.ladder.levels

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """The level's first channels; the same for every round and device.

        Raises:
            PlanError: a level this ladder does not have.
        """
        return self.ladder.first(level)

    def program(self, cut: Cut) -> DeviceProgram:
        """Plain training."""
        return self.plain

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The level's part of the server's model."""
        cut = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        return self.ladder.submodel(state, level, cut, self.program(cut))

    def aggregate(self, state: State, updates: Iterable[Update], rule: Rule | None = None) -> State:
        """Every entry the mean over the devices that held it; see :meth:`WidthLadder.aggregate`."""
        return self.ladder.aggregate(state, updates, rule)

    def with_statistics(self, state: State, updates: Iterable[Update]) -> State:
        """Static statistics, entry by entry, and for every level from its own devices."""
        return self.ladder.with_statistics(state, updates)

    def refresh(self, state: State) -> State:
        """The state itself."""
        return state

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """What the server holds, as ``server``."""
        return {"server": self.ladder.server(state, self.plain)}

    def level_models(self, state: State) -> dict[str, Submodel]:
        """Every level's own network by the level's name."""
        return {lv.name: self.cut(state, lv, round_index=state.round, device="", seed=0) for lv in self.levels()}

"""The small model: every device trains the one network that fits the smallest of them. What width scaling must beat.

Source: the baseline of SLT (NeurIPS 2023), section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from coordinator.methods.method import DeviceProgram, Level, State, Submodel, Update
from coordinator.methods.options import LOSSES, NORMS, Options
from coordinator.methods.width_ladder import WidthLadder, read_width_options
from coordinator.submodels.record import Cut

if TYPE_CHECKING:
    from torch import nn

DEFAULT_LEVELS = (0.25,)


class SmallModel:
    """Options, in kebab case:

    - ``levels``: width ratios of the devices, as for the other methods; all train at the smallest. By default 1/4.
    - ``rounding``: ``floor`` (SLT), ``ceil`` or ``round``; ``concatenation``: ``each`` or ``cumulative``.
    - ``loss``, ``norm``: as FedAvg's.
    - ``weight-by-examples``: weigh devices by ``num_examples``; true, as FedAvg does.
    """

    name = "small_model"

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a module that cannot be cut so."""
        read = Options(self.name, options)
        ratio = min(read.ratios("levels", DEFAULT_LEVELS))
        rounding, concatenation, by_examples = read_width_options(read, rounding="floor", by_examples=True)
        loss, norm = read.choice("loss", LOSSES, "cross_entropy"), read.choice("norm", NORMS, "running")
        read.finish()
        self._program = DeviceProgram(loss=loss, norm=norm)
        self._ladder = WidthLadder(
            self.name,
            module,
            (ratio,),
            rounding=rounding,
            by_examples=by_examples,
            shrink=True,
            concatenation=concatenation,
            are_given="levels" in options,
        )

    def init(self) -> State:
        """The first channels of the module's own initial weights."""
        return self._ladder.init()

    def levels(self) -> tuple[Level, ...]:
        """The smallest level alone."""
        return self._ladder.levels

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """The small network, for every round and device.

        Raises:
            PlanError: another level.
        """
        return self._ladder.first(level)

    def program(self, cut: Cut) -> DeviceProgram:
        """Plain training."""
        return self._program

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The small network's weights."""
        cut = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        return self._ladder.submodel(state, level, cut, self._program)

    def aggregate(self, state: State, updates: Iterable[Update]) -> State:
        """The mean over the devices."""
        return self._ladder.aggregate(state, updates)

    def refresh(self, state: State) -> State:
        """The state itself."""
        return state

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """The small network, as ``server``."""
        return {"server": self._ladder.server(state, self._program)}

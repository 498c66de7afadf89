"""Federated Dropout: each device trains randomly drawn channels of every layer, other ones in every round.

Layers that a residual stream adds up draw one set together.
Source: Caldas et al., "Expanding the reach of federated learning by reducing client resource requirements" (2018);
per device and round as in SLT's comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from coordinator.methods.method import DeviceProgram, Level, State, Submodel, Update
from coordinator.methods.options import LOSSES, NORMS, Options
from coordinator.methods.width_ladder import WidthLadder, read_width_options
from coordinator.submodels.record import Cut
from coordinator.submodels.width import random_channels

if TYPE_CHECKING:
    from torch import nn

DEFAULT_LEVELS = (1, 0.5, 0.25, 0.125, 0.0625)


class FederatedDropout:
    """Options, in kebab case:

    - ``levels``: width ratios, by default 1, 1/2, 1/4, 1/8 and 1/16.
    - ``rounding``: ``floor`` (SLT's code), ``ceil`` or ``round``; ``concatenation`` as HeteroFL's.
    - ``loss``, ``norm``: as FedAvg's.
    - ``weight-by-examples``: weigh devices by ``num_examples``; false.
    """

    name = "federated_dropout"

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a module that cannot be cut so."""
        read = Options(self.name, options)
        ratios = read.ratios("levels", DEFAULT_LEVELS)
        rounding, concatenation, by_examples = read_width_options(read, rounding="floor")
        loss, norm = read.choice("loss", LOSSES, "cross_entropy"), read.choice("norm", NORMS, "running")
        read.finish()
        self._program = DeviceProgram(loss=loss, norm=norm)
        self._ladder = WidthLadder(
            self.name,
            module,
            ratios,
            rounding=rounding,
            by_examples=by_examples,
            shrink=False,
            concatenation=concatenation,
            are_given="levels" in options,
        )

    def init(self) -> State:
        """The module's own initial weights."""
        return self._ladder.init()

    def levels(self) -> tuple[Level, ...]:
        """One level per ratio, largest first."""
        return self._ladder.levels

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """Channels drawn from the stream of (seed, round, device).

        Raises:
            PlanError: a level this ladder does not have.
        """
        counts = self._ladder.counts(level)
        channels = self._ladder.channels
        return self._ladder.cut(
            level, random_channels(channels, counts, seed=seed, round_index=round_index, device=device)
        )

    def program(self, cut: Cut) -> DeviceProgram:
        """Plain training."""
        return self._program

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The drawn part of the server's model."""
        cut = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        return self._ladder.submodel(state, level, cut, self._program)

    def aggregate(self, state: State, updates: Iterable[Update]) -> State:
        """Every entry the mean over the devices that held it; others keep their value."""
        return self._ladder.aggregate(state, updates)

    def refresh(self, state: State) -> State:
        """The state itself; every round draws anew."""
        return state

    def with_statistics(self, state: State, updates: Iterable[Update]) -> State:
        """Static statistics, entry by entry."""
        return self._ladder.with_statistics(state, updates)

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """The whole model, as ``server``."""
        return {"server": self._ladder.server(state, self._program)}

"""HeteroFL: each device trains the first channels of every layer, as many as it can afford.

The server takes the mean of every entry over the devices that held it. Evaluated are the server's model and every
level's own network.
Source: Diao et al., "HeteroFL: computation and communication efficient federated learning for heterogeneous clients"
(ICLR 2021).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coordinator.methods.method import DeviceProgram, Level, State, Submodel, Update
from coordinator.methods.options import LOSSES, NORMS, Options
from coordinator.methods.width_ladder import WidthLadder, read_width_options
from coordinator.submodels.record import Cut

if TYPE_CHECKING:
    from torch import nn

DEFAULT_LEVELS = (1, 0.5, 0.25, 0.125, 0.0625)
"""Widths a to e of the paper."""


class HeteroFL:
    """Options, in kebab case:

    - ``levels``: width ratios, by default 1, 1/2, 1/4, 1/8 and 1/16. Without 1 the server holds the largest level.
    - ``rounding`` of ratio times channels: ``round``, the default (FedHM's tables of HeteroFL), ``ceil`` (HeteroFL's
      own code; the same at its levels, powers of two) or ``floor`` (SLT's).
    - ``concatenation``: ``each`` layer is rounded by itself, or ``cumulative``, so that the input of a layer behind
      concatenated ones is (SLT's DenseNet).
    - ``scaler``: outputs of narrowed layers are divided by the ratio while training; true. Not where a batch norm
      follows, which takes the factor out again.
    - ``loss``: ``label_masked_cross_entropy``, as in the paper, unless given; ``norm`` as FedAvg's. The paper's static
      batch norm is ``norm = "batch"`` with ``[evaluation] norm = "static"``.
    - ``weight-by-examples``: weigh devices by ``num_examples``; false, as in the paper.
    """

    name = "heterofl"

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a module that cannot be cut so."""
        read = Options(self.name, options)
        ratios = read.ratios("levels", DEFAULT_LEVELS)
        rounding, concatenation, by_examples = read_width_options(read, rounding="round")
        self._has_scaler = read.flag("scaler", True)
        loss = read.choice("loss", LOSSES, "label_masked_cross_entropy")
        self._program = DeviceProgram(loss=loss, norm=read.choice("norm", NORMS, "running"))
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
        cut = self._ladder.first(level)
        return self._ladder.scaled(cut, level) if self._has_scaler else cut

    def program(self, cut: Cut) -> DeviceProgram:
        """Training on the masked loss; the scaler is part of the cut."""
        return self._program

    def cut(self, state: State, level: Level, *, round_index: int, device: str, seed: int) -> Submodel:
        """The level's part of the server's model."""
        cut = self.cut_shape(level, round_index=round_index, device=device, seed=seed)
        return self._ladder.submodel(state, level, cut, self.program(cut))

    def aggregate(self, state: State, updates: Iterable[Update]) -> State:
        """Every entry the mean over the devices that held it; see :meth:`WidthLadder.aggregate`."""
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
        server = self._ladder.server(state, self._program)
        if server.cut:
            # The same network as the devices', so that it is deployed from their artifact.
            server = replace(server, cut=levels[self.levels()[0].name].cut)
        return {"server": server, **levels}

"""HeteroFL: each device trains the first channels of every layer, as many as it can afford.

The server takes the mean of every entry over the devices that held it. Evaluated are the server's model and every
level's own network.
Source: Diao et al., "HeteroFL: computation and communication efficient federated learning for heterogeneous clients"
(ICLR 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coordinator.config.method_options import Options
from coordinator.methods.width_method import WidthMethod
from coordinator.submodels.record import Cut
from coordinator.submodels.values import Level, State, Submodel


class HeteroFL(WidthMethod):
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
    rounding = "round"
    loss = "label_masked_cross_entropy"
    shrinks = True

    def read_own(self, read: Options) -> None:
        """``scaler``."""
        self._has_scaler = read.flag("scaler", True)

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """The level's first channels, scaled; the same for every round and device.

        Raises:
            PlanError: a level this ladder does not have.
        """
        cut = self.ladder.first(level)
        return self.ladder.scaled(cut, level) if self._has_scaler else cut

    def eval_models(self, state: State) -> Mapping[str, Submodel]:
        """``server``, which is the largest level's network where no device trains the whole, and every level."""
        levels, server = self.level_models(state), self.ladder.server(state, self.plain)
        if server.cut:
            # The same network as the devices', so that it is deployed from their artifact.
            server = replace(server, cut=levels[self.levels()[0].name].cut)
        return {"server": server, **levels}

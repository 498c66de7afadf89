"""FedRolex: each device trains a window of every layer's channels, and the window moves on every round.

All devices of a level hold the same window, so every channel is trained once in as many rounds as a layer has channels.
Source: Alam et al., "FedRolex: model-heterogeneous federated learning with rolling sub-model extraction"
(NeurIPS 2022), Eq. 3. Its code rolls the other way round, which visits the same windows.
"""

from __future__ import annotations

from coordinator.methods.width_method import WidthMethod
from coordinator.submodels.record import Cut
from coordinator.submodels.values import Level
from coordinator.submodels.width import window


class FedRolex(WidthMethod):
    """Options, in kebab case:

    - ``levels``: width ratios, by default 1, 1/2, 1/4, 1/8 and 1/16.
    - ``rounding``: ``ceil`` (FedRolex's code), ``round`` or ``floor`` (SLT's); ``concatenation`` as HeteroFL's.
    - ``loss``, ``norm``: as FedAvg's.
    - ``weight-by-examples``: weigh devices by ``num_examples``; false.
    """

    name = "fedrolex"

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """Of a layer with M channels those from round mod M on, wrapping; the same for all devices of the level.

        Raises:
            PlanError: a level this ladder does not have.
        """
        counts = self.ladder.counts(level)
        return self.ladder.cut(level, window(self.ladder.channels, counts, lambda group: round_index))

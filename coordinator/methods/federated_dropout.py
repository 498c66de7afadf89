"""Federated Dropout: each device trains randomly drawn channels of every layer, other ones in every round.

Layers that a residual stream adds up draw one set together.
Source: Caldas et al., "Expanding the reach of federated learning by reducing client resource requirements" (2018);
per device and round as in SLT's comparison.
"""

from __future__ import annotations

from coordinator.methods.width_method import WidthMethod
from coordinator.submodels.record import Cut
from coordinator.submodels.values import Level
from coordinator.submodels.width import random_channels


class FederatedDropout(WidthMethod):
    """Options, in kebab case:

    - ``levels``: width ratios, by default 1, 1/2, 1/4, 1/8 and 1/16.
    - ``rounding``: ``floor`` (SLT's code), ``ceil`` or ``round``; ``concatenation`` as HeteroFL's.
    - ``loss``, ``norm``: as FedAvg's.
    - ``weight-by-examples``: weigh devices by ``num_examples``; false.
    """

    name = "federated_dropout"
    rounding = "floor"

    def cut_shape(self, level: Level, *, round_index: int, device: str, seed: int) -> Cut:
        """Channels drawn from the stream of (seed, round, device).

        Raises:
            PlanError: a level this ladder does not have.
        """
        channels, counts = self.ladder.channels, self.ladder.counts(level)
        return self.ladder.cut(
            level, random_channels(channels, counts, seed=seed, round_index=round_index, device=device)
        )

"""FedAdagrad: v_t = v_{t-1} + Delta_t^2; a coordinate's steps only ever become smaller.

Source: Reddi et al., "Adaptive federated optimization" (ICLR 2021), Algorithm 2.
"""

from __future__ import annotations

from coordinator.config.server_optimizer import ServerOptimizerConfig
from coordinator.server_optimizers.adaptive import Adaptive


class FedAdagrad(Adaptive):
    """See :mod:`coordinator.server_optimizers.adaptive`."""

    def __init__(self, config: ServerOptimizerConfig) -> None:
        super().__init__(config, lambda v, square: v + square)

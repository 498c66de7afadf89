"""FedAdam: v_t = beta2 v_{t-1} + (1 - beta2) Delta_t^2.

Source: Reddi et al., "Adaptive federated optimization" (ICLR 2021), Algorithm 2.
"""

from __future__ import annotations

from coordinator.config.server_optimizer import ServerOptimizerConfig
from coordinator.server_optimizers.adaptive import Adaptive


class FedAdam(Adaptive):
    """See :mod:`coordinator.server_optimizers.adaptive`."""

    def __init__(self, config: ServerOptimizerConfig) -> None:
        super().__init__(config, lambda v, square: config.beta2 * v + (1 - config.beta2) * square)

"""FedYogi: v_t = v_{t-1} - (1 - beta2) Delta_t^2 sign(v_{t-1} - Delta_t^2); v follows large steps slowly.

Source: Reddi et al., "Adaptive federated optimization" (ICLR 2021), Algorithm 2.
"""

from __future__ import annotations

import numpy as np

from coordinator.config.server_optimizer import ServerOptimizerConfig
from coordinator.server_optimizers.adaptive import Adaptive


class FedYogi(Adaptive):
    """See :mod:`coordinator.server_optimizers.adaptive`."""

    def __init__(self, config: ServerOptimizerConfig) -> None:
        super().__init__(config, lambda v, square: v - (1 - config.beta2) * square * np.sign(v - square))

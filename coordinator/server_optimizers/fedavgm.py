"""FedAvgM: the server's step with momentum.

    m_t = beta1 m_{t-1} + Delta_t,    x_{t+1} = x_t + eta m_t,    m_{-1} = 0.

Source: Hsu et al., "Measuring the effects of non-identical data distribution for federated visual classification",
section 4.3 (eta = 1); Reddi et al., "Adaptive federated optimization", section 5, has it as FedAvgM.
"""

from __future__ import annotations

import numpy as np

from coordinator.config.server_optimizer import ServerOptimizerConfig


class FedAvgM:
    """Keeps ``m``, the momentum, of every trained tensor."""

    def __init__(self, config: ServerOptimizerConfig) -> None:
        self._config = config

    def first(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Zeros."""
        return {"m": np.zeros(shape, np.float32)}

    def step(self, delta: np.ndarray, kept: dict[str, np.ndarray]) -> np.ndarray:
        """See :class:`coordinator.server_optimizers.ServerOptimizer`."""
        kept["m"] = self._config.beta1 * kept["m"] + delta
        return self._config.lr * kept["m"]

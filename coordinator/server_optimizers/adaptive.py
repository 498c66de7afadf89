"""What the three adaptive server optimizers share; they differ in how the mean square follows the steps.

    m_t = beta1 m_{t-1} + (1 - beta1) Delta_t,    x_{t+1} = x_t + eta m_t / (sqrt(v_t) + tau),
    m_{-1} = 0,    v_{-1} = tau^2,    without bias correction.

Source: Reddi et al., "Adaptive federated optimization" (ICLR 2021), Algorithm 2. Delta_t is the devices' mean minus the
model; the algorithm weighs devices alike, and here as in the paper's experiments they are weighed by their examples,
as the method weighs them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coordinator.config.server_optimizer import ServerOptimizerConfig

MeanSquare = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""v_t from v_{t-1} and the square of Delta_t."""


class Adaptive:
    """Keeps ``m`` and ``v`` of every trained tensor."""

    def __init__(self, config: ServerOptimizerConfig, mean_square: MeanSquare) -> None:
        self._config = config
        self._mean_square = mean_square

    def first(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """m = 0, v = tau^2."""
        return {"m": np.zeros(shape, np.float32), "v": np.full(shape, self._config.tau**2, np.float32)}

    def step(self, delta: np.ndarray, kept: dict[str, np.ndarray]) -> np.ndarray:
        """See :class:`coordinator.server_optimizers.ServerOptimizer`."""
        config = self._config
        kept["m"] = config.beta1 * kept["m"] + (1 - config.beta1) * delta
        kept["v"] = self._mean_square(kept["v"], delta * delta)
        moved: np.ndarray = config.lr * kept["m"] / (np.sqrt(kept["v"]) + config.tau)
        return moved

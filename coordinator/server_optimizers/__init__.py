"""Server optimizers by name. A new one is one new file here and one line in :data:`SERVER_OPTIMIZERS`."""

from __future__ import annotations

import importlib
from typing import Protocol

import numpy as np

from coordinator.config.server_optimizer import ServerOptimizerConfig

SERVER_OPTIMIZERS: dict[str, str] = {
    "fedavgm": "coordinator.server_optimizers.fedavgm:FedAvgM",
    "fedadagrad": "coordinator.server_optimizers.fedadagrad:FedAdagrad",
    "fedadam": "coordinator.server_optimizers.fedadam:FedAdam",
    "fedyogi": "coordinator.server_optimizers.fedyogi:FedYogi",
}
"""Name -> ``module:class``, imported when used; each is made from its table of the run file."""


class ServerOptimizer(Protocol):
    """What the server does with Delta, the difference between the devices' mean and the model that they were sent."""

    def first(self, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """What is kept of a tensor of ``shape`` before round 0, by name; float32."""

    def step(self, delta: np.ndarray, kept: dict[str, np.ndarray]) -> np.ndarray:
        """What is added to a tensor, float64; ``kept``, float64, becomes what is kept after the round."""


def server_optimizer(config: ServerOptimizerConfig) -> ServerOptimizer:
    """The server optimizer that the table asks for; reading the run file has checked its name."""
    module, _, name = SERVER_OPTIMIZERS[config.name].partition(":")
    made: ServerOptimizer = getattr(importlib.import_module(module), name)(config)
    return made

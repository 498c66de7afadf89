"""The simulation's session on float64 values: what a step's result is before float32 rounds it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from coordinator.simulation.torch_session import TorchSession


class Float64Session(TorchSession):
    """The same programs on float64 values."""

    def load_state(self, tensors: Mapping[str, np.ndarray]) -> None:
        super().load_state(tensors)
        self._state = {
            name: value.double() if value.is_floating_point() else value for name, value in self._state.items()
        }

    def run(self, program: str, feeds: Mapping[str, np.ndarray]) -> dict[str, float]:
        wide = {n: v.astype(np.float64) if v.dtype == np.float32 else v for n, v in feeds.items()}
        result = super().run(program, wide)
        assert all(value.dtype != torch.float32 for value in self._state.values())
        return result

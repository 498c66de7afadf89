"""Where a simulation's state has the layers that a device keeps for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.rounds.stage_tensors import apart
from coordinator.submodels.values import State

if TYPE_CHECKING:
    import numpy as np

KEPT = "personal"


def own_layers(state: State, device: str) -> dict[str, np.ndarray]:
    """Name -> the device's own tensor; nothing of a device that has not trained."""
    return own_tensors(state, device, KEPT)


def own_tensors(state: State, device: str, stage: str) -> dict[str, np.ndarray]:
    """Name -> what ``stage`` keeps of the device under that name."""
    kept, start = apart(state)[1].get(stage, {}), f"{device}/"
    return {name.removeprefix(start): value for name, value in kept.items() if name.startswith(start)}

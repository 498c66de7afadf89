"""Where a simulation's state has the layers that a device keeps for itself."""

from __future__ import annotations

from coordinator.rounds.stage_tensors import apart
from coordinator.submodels.values import State, Tensors

KEPT = "personal"


def own_layers(state: State, device: str) -> Tensors:
    """Name -> the device's own tensor; nothing of a device that has not trained."""
    kept = apart(state)[1].get(KEPT, {})
    start = f"{device}/"
    return {name.removeprefix(start): value for name, value in kept.items() if name.startswith(start)}

"""The layers that simulated devices keep for themselves, and how well each device's own model does.

They are in the simulation's checkpoint beside the model, so a simulation that is killed ends with the same bits. In a
run they are on the devices, and no coordinator has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coordinator.ledger.records import Round
from coordinator.rounds.federation import Federation, RoundStage
from coordinator.simulation.devices import SimulatedDevices
from coordinator.simulation.orders import Simulation
from coordinator.simulation.own_layers import KEPT, own_layers
from coordinator.submodels.values import State, Tensors


class PersonalLayers(RoundStage):
    """In a simulation with ``[personal]``."""

    def __init__(self, simulation: Simulation, devices: SimulatedDevices) -> None:
        self._simulation = simulation
        self._devices = devices

    def aggregated(self, federation: Federation, before: State, mean: State, kept: dict[str, Tensors]) -> State:
        """The mean as it is; what the round's devices keep goes to ``kept``."""
        new = self._devices.tally.personal.items()
        kept[KEPT] = {**kept.get(KEPT, {}), **{f"{d}/{name}": value for d, mine in new for name, value in mine.items()}}
        return mean

    def metrics(self, federation: Federation, current: Round, program: str, state: State) -> Mapping[str, Any]:
        """``personal``: accuracy of each device's own model, its mean, and the lowest.

        A device's model is the global one with the device's own layers, and is scored on the held-out examples as often
        as the device has examples of their class; one that has not trained yet has the global model's layers.
        """
        every, rounds = federation.config.evaluation.every, federation.config.federation.rounds
        is_last = program == "stats" or current.round + 1 >= rounds
        if not is_last and not (every and (current.round + 1) % every == 0):
            return {}
        scores = list(self.accuracies(state).values())
        mean, lowest = float(np.mean(scores)), float(np.min(scores))
        return {"personal": {"accuracy": mean, "lowest": lowest, "devices": len(scores)}}

    def accuracies(self, state: State) -> dict[str, float]:
        """Device -> accuracy of its own model on classes as it has them."""
        assert self._simulation.labels is not None
        trained, held_out = self._simulation.labels
        server = self._simulation.method.eval_models(state)["server"]
        devices = sorted(self._simulation.shares)
        models = (replace(server, tensors={**server.tensors, **own_layers(state, d)}) for d in devices)
        found = {}
        for device, model in zip(devices, models, strict=True):
            (logits,) = self._simulation.workers.outputs([model])
            classes, counts = np.unique(trained[self._simulation.shares[device]], return_counts=True)
            right = logits.argmax(1) == held_out
            by_class = {c: float(right[held_out == c].mean()) for c in classes if (held_out == c).any()}
            weights = {c: n for c, n in zip(classes, counts, strict=True) if c in by_class}
            found[device] = sum(by_class[c] * n for c, n in weights.items()) / max(1, sum(weights.values()))
        return found

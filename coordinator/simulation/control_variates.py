"""SCAFFOLD's stage in a simulation, which keeps its devices' variates beside the server's.

They are in the simulation's checkpoint, so one that is killed ends with the same bits. In a run devices have them.
"""

from __future__ import annotations

from coordinator.ledger.records import Assignment
from coordinator.rounds.federation import Federation
from coordinator.rounds.stages.control_variates import ControlVariates
from coordinator.simulation.devices import SimulatedDevices
from coordinator.simulation.own_variates import KEPT
from coordinator.submodels.values import State, Tensors


class SimulatedVariates(ControlVariates):
    """In a simulation with ``[training] scaffold``."""

    def __init__(self, devices: SimulatedDevices) -> None:
        super().__init__()
        self._devices = devices

    def assignments(self, federation: Federation, assignments: list[Assignment]) -> list[Assignment]:
        """As they are: the state says what a device goes on from."""
        return assignments

    def aggregated(self, federation: Federation, before: State, mean: State, kept: dict[str, Tensors]) -> State:
        """As :meth:`ControlVariates.aggregated`; what the devices that count keep goes to ``kept``."""
        counted = {d: self._devices.tally.variates[d] for d in self.counted}
        new = {f"{device}/{name}": value for device, mine in counted.items() for name, value in mine.items()}
        kept[KEPT] = {**kept.get(KEPT, {}), **new}
        return super().aggregated(federation, before, mean, kept)

"""What a method and level cost a run's devices: memory, bytes and seconds, computed from the run's own model and cuts.

The memory is the simulator's prediction of a local device, the seconds are its clock's; a plan knows the graph and a
device its processor (docs/advise.md says how far apart they were).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.advice.features import Population
from coordinator.config.device_speed import DeviceSpeed
from coordinator.config.run_config import RunConfig
from coordinator.exporting.cut_exporter import CutExporter, run_input_spec
from coordinator.planning.capacity_levels import predicted_bytes
from coordinator.run_file.checks import method_of_run
from coordinator.submodels.costs import Costs, cut_costs
from coordinator.submodels.record import cut_digest
from coordinator.submodels.width import shape_of_cut

if TYPE_CHECKING:
    from torch import nn

MB = 2**20


@dataclass(frozen=True)
class Spent:
    """What it takes to get somewhere.

    Attributes:
        time_s: rounds one after the other, each as long as its slowest device.
        bytes: of all devices, both ways.
        cpu_s: of all devices' processors.
    """

    time_s: float
    bytes: float
    cpu_s: float


class MethodCost:
    """One method at one level, on one run's model; cuts may change with the round.

    Args:
        options: of ``[method]``, with one level.

    Raises:
        ConfigError, PlanError: the method does not go with the model.
    """

    def __init__(self, config: RunConfig, dense: nn.Module, method: str, options: Mapping[str, Any]) -> None:
        self.config = with_method(config, method, options)
        self._dense, self._spec = dense, run_input_spec(config)
        self._method = method_of_run(self.config, dense)
        self._level = self._method.levels()[0]
        self._known: dict[str, Costs] = {}
        self._exporter = CutExporter(self.config, dense)

    def of_round(self, index: int) -> Costs:
        """Counts of the cut of round ``index``, from 0."""
        cut = self._method.cut_shape(self._level, round_index=index, device="", seed=0)
        digest = cut_digest(shape_of_cut(self._dense, cut))
        if digest not in self._known:
            self._known[digest] = cut_costs(self._dense, cut, self._spec, batch=self.config.training.batch)
        return self._known[digest]

    def memory_mb(self, rounds: int) -> float:
        """Peak of supervisor and trainer over the first ``rounds`` rounds, predicted; MB of 2^20."""
        runtime = self.config.runtime.names[0]
        growths = set[int]()
        for index in range(max(1, rounds)):
            cut = self._method.cut_shape(self._level, round_index=index, device="", seed=0)
            growths.add(self._exporter.growth_bytes(cut, self._method.program(cut), runtime))
        return predicted_bytes(self.config, runtime, max(growths)) / MB

    def spent(self, rounds: int, speed: DeviceSpeed, devices: Population) -> Spent:
        """What the first ``rounds`` rounds take, by ``speed`` of every device."""
        batch, participants = self.config.training.batch, devices.features.participants
        time_s = count = cpu_s = 0.0
        for index in range(rounds):
            costs = self.of_round(index)
            macs = costs.macs * batch
            time_s += speed.round_s(
                steps=devices.most_steps, step_macs=macs, bytes_down=costs.bytes_down, bytes_up=costs.bytes_up
            )
            count += participants * (costs.bytes_down + costs.bytes_up)
            cpu_s += participants * devices.mean_steps * speed.step_s(macs)
        return Spent(time_s, count, cpu_s)


def with_method(config: RunConfig, method: str, options: Mapping[str, Any]) -> RunConfig:
    """``config`` with another method; the run's ``norm`` stays, and SLT's rounds are the run's."""
    kept = {key: value for key, value in config.method.options.items() if key == "norm"}
    own = {"rounds": config.federation.rounds} if method == "slt" else {}
    values = msgspec.structs.replace(config.method, name=method, options={**kept, **options, **own})
    return msgspec.structs.replace(config, method=values)

"""Simulated seconds of a device's round, by what ``[simulation] time-model`` names.

Without one, by the device profile: multiply-accumulates and bytes. A published time model of PruneFL charges every kept
weight the seconds of its layer, computation and both transfers, whatever method keeps it. Methods that prune and
methods that do not are then on one clock, on which a whole model takes what its weights cost in sparse form: so the
paper charges its FedAvg (51.08 s for a round of Conv-2 with 62 classes, where 47.1 s were measured dense).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.methods.method import Method, TimesRounds
from coordinator.pruning.masks import prunable_weights
from coordinator.pruning.time_model import PRESETS
from coordinator.simulation.device_speed import device_speed
from coordinator.submodels.packed_tensors import masks_of
from coordinator.submodels.values import State, Submodel
from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from coordinator.config.run_config import SimulationConfig
    from coordinator.submodels.record import Cut

OWN = "method"
"""The time model that is the method's own."""


@dataclass(frozen=True)
class DeviceRound:
    """What one device did.

    Attributes:
        state: before the round.
        steps, batch: local iterations, and examples in each.
    """

    state: State
    submodel: Submodel
    steps: int
    batch: int
    bytes_down: int
    bytes_up: int


RoundClock = Callable[[DeviceRound], float]
"""Seconds from the order to the report."""


def round_clock(config: SimulationConfig, method: Method, dense: nn.Module, macs: Callable[[Cut], int]) -> RoundClock:
    """The clock that ``config`` asks for.

    Args:
        macs: forward multiply-accumulates of a cut, per example.

    Raises:
        ConfigError: an unknown time model, one of another number of layers, one for a method that factorizes weights,
            or ``method`` for a method without its own.
    """
    name = config.time_model
    if not name:
        speed = device_speed(config)
        return lambda done: speed.round_s(
            steps=done.steps,
            step_macs=macs(done.submodel.cut) * done.batch,
            bytes_down=done.bytes_down,
            bytes_up=done.bytes_up,
        )
    if name == OWN:
        if not isinstance(method, TimesRounds):
            raise ConfigError(
                [f"$.simulation.time-model: {method.name} has no time model of its own; name one of {_known()}"]
            )
        timed = method
        return lambda done: timed.round_seconds(done.state)
    if name not in PRESETS:
        raise ConfigError([f"$.simulation.time-model: '{name}' is not known; use '{OWN}' or one of {_known()}"])
    weights, coefficients = prunable_weights(dense), PRESETS[name]
    if len(weights) != len(coefficients.iteration_s):
        raise ConfigError(
            [
                f"$.simulation.time-model: '{name}' has coefficients of {len(coefficients.iteration_s)} layers, "
                f"the model has {len(weights)} ({', '.join(weights)}); leave it out for the device profile's time"
            ]
        )
    _check_weights(method, name)

    def seconds(done: DeviceRound) -> float:
        times = coefficients.model(weights, iterations=done.steps)
        kept = kept_weights(done.submodel, weights)
        return times.constant_s + sum(times.weight_s[weight] * count for weight, count in kept.items())

    return seconds


def kept_weights(submodel: Submodel, names: Sequence[str]) -> dict[str, int]:
    """How many entries of each of ``names`` a submodel trains: those under its mask, or all that its cut left."""
    masks = masks_of(submodel.tensors)
    return {name: int(masks[name].sum()) if name in masks else submodel.tensors[name].size for name in names}


def _check_weights(method: Method, name: str) -> None:
    """Raises ConfigError when a level of ``method`` has factors in place of a weight, or beside it."""
    for level in method.levels():
        cut = method.cut_shape(level, round_index=0, device="", seed=0)
        factorized = next((path for path in sorted(cut) if cut[path].factor), "")
        if factorized:
            raise ConfigError(
                [
                    f"$.simulation.time-model: '{name}' times dense, masked and narrowed weights; '{factorized}' of "
                    f"level '{level.name}' is factorized; leave it out for the device profile's time"
                ]
            )


def _known() -> str:
    return ", ".join(sorted(PRESETS))

"""Which of the devices that are here take part in a round."""

from __future__ import annotations

from coordinator.config.run_config import RunConfig
from coordinator.device_scores.held_out import EVAL
from coordinator.messaging.cohort import select
from coordinator.methods.method import SelectsDevices
from coordinator.rounds.federation import Federation
from coordinator.submodels.values import State
from edge.contracts.messages import Hello


def choose_devices(
    federation: Federation, state: State, round_index: int, attempt: int, program: str = "train"
) -> tuple[list[Hello], list[str]]:
    """The devices selected among those that are here, by id, and all that they were drawn from."""
    config = federation.config
    hellos = federation.devices.gather(federation, round_index)
    eligible = federation.stages.eligible(federation, [hello.device for hello in hellos], round_index)
    is_of_all = asks_all(config, program)
    allowed = eligible if is_of_all else _allowed(federation, state, eligible)
    chosen = select(
        allowed,
        len(allowed) if is_of_all else config.cohort.size + config.cohort.over_selection,
        seed=federation.stages.selection_seed(federation, config.federation.seed),
        round_index=round_index,
        attempt=attempt,
    )
    by_device = {hello.device: hello for hello in hellos}
    return [by_device[device] for device in chosen if device in by_device], allowed


def asks_all(config: RunConfig, program: str) -> bool:
    """Whether all devices that are here take part: in scores, and in a norm's final statistics.

    A distribution over some devices says little of the rest, and a width of which none is asked gathers no statistics:
    the whole model of HeteroFL had 72.9 % for 95.2 with 5 devices of 50 (docs/measurements/2026-11-27-authors-code.md).
    Masked statistics are asked of one cohort: what its devices agree on is for so many.
    """
    return program == EVAL or (program == "stats" and not config.privacy.secure_aggregation)


def _allowed(federation: Federation, state: State, devices: list[str]) -> list[str]:
    """The devices a method wants in this round: all of them, unless it chooses among them."""
    method = federation.method
    return list(method.select(state, devices)) if isinstance(method, SelectsDevices) else devices

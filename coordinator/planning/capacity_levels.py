"""Which level a local device holds in a round: its group's, or one drawn anew, or the largest its budget takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from coordinator.config.cohort import CohortConfig, LocalGroup
from coordinator.config.run_config import RunConfig
from coordinator.planning.planner import MB
from coordinator.submodels.values import Level
from edge.contracts.errors import ConfigError, PlanError
from edge.contracts.streams import stream_seed, uniform
from edge.runtimes import traits_of

GrowthOf = Callable[[Level, str], float]
"""Bytes of a level's step on a runtime above an idle trainer."""


def device_names(cohort: CohortConfig) -> list[str]:
    """Ids of the local devices, group after group, as ``apportion run`` names them."""
    return list(cohort.local_tags)


def configured_level(config: RunConfig, levels: Sequence[Level], device: str, round_index: int) -> Level | None:
    """The level that the run file gives a local device in a round; None where a budget decides, or nothing.

    Source of the dynamic form: FedHM and HeteroFL, "dynamic" heterogeneity.

    Raises:
        ConfigError: a group names a level that is not there.
    """
    group = _group_of(config, device, round_index)
    return None if group is None else group_level(config, group, levels)


def group_level(config: RunConfig, group: int, levels: Sequence[Level]) -> Level | None:
    """The level that local group number ``group`` is given; None where a budget decides, or nothing.

    Raises:
        ConfigError: it names a level that is not there.
    """
    text = config.cohort.local[group].level
    return find_level(text, levels, path=f"$.cohort.local[{group}].level") if text else None


def _group_of(config: RunConfig, device: str, round_index: int) -> int | None:
    """The group that a local device belongs to, or has drawn for the round."""
    names, groups = device_names(config.cohort), config.cohort.local
    if device not in names:
        return None
    place = names.index(device)
    if config.cohort.capacity == "dynamic":
        draw = uniform(stream_seed(config.federation.seed, "capacity", round_index, device), 1)[0]
        place = int(draw * len(names))
    ends = itertools.accumulate(group.count for group in groups)
    return next(index for index, end in enumerate(ends) if place < end)


class Capacities:
    """Levels of the simulated devices of one run.

    Args:
        levels: the method's ladder, largest first.
        growth_of: bytes that a level's step on a runtime takes above an idle trainer; asked only for groups with a
            budget.

    Raises:
        ConfigError: no local devices, or a group names a level that is not there.
        PlanError: a budget below every level.
    """

    def __init__(self, config: RunConfig, levels: Sequence[Level], growth_of: GrowthOf) -> None:
        groups = config.cohort.local
        if not groups:
            raise ConfigError(
                ["$.cohort.local: no simulated devices; add [[cohort.local]] groups, each with a count and a level"]
            )
        self._config = config
        self._groups = [_level_of_group(config, index, group, levels, growth_of) for index, group in enumerate(groups)]

    def level(self, device: str, round_index: int) -> Level:
        """The level of ``device`` in a round."""
        group = _group_of(self._config, device, round_index)
        assert group is not None, f"{device} is no device of this run"
        return self._groups[group]


def find_level(text: str, levels: Sequence[Level], *, path: str) -> Level:
    """The level called ``text``, or whose value it is.

    Raises:
        ConfigError: none is; lists them.
    """
    for level in levels:
        if text == level.name or _number(text) == level.value:
            return level
    known = ", ".join(f"'{level.name}' ({level.value:g})" for level in levels)
    raise ConfigError([f"{path}: the method has no level '{text}'; its levels are {known}"])


def _level_of_group(
    config: RunConfig, index: int, group: LocalGroup, levels: Sequence[Level], growth_of: GrowthOf
) -> Level:
    given = group_level(config, index, levels)
    if not group.budget_mb:
        return given or levels[0]
    runtime = config.runtime.of_group(group)
    tried = [given] if given else levels
    needs = {level: predicted_bytes(config, runtime, growth_of(level, runtime)) / MB for level in tried}
    for level, needed_mb in needs.items():
        if needed_mb <= group.budget_mb:
            return level
    told = ", ".join(f"'{level.name}' {needed_mb:.0f} MB" for level, needed_mb in needs.items())
    raise PlanError(
        f"$.cohort.local[{index}]: budget {group.budget_mb:g} MB fits no level; they need about {told}; "
        "raise it, or give a smaller level"
    )


def predicted_bytes(config: RunConfig, runtime: str, growth_bytes: float) -> float:
    """Peak of supervisor and trainer: both of them idle, what a step takes, and the headroom of that.

    A plan does the same with the idle sizes and the correction that a device measured.
    """
    idle_bytes = config.simulation.idle_mb * MB or traits_of(runtime).agent_bytes
    return idle_bytes + growth_bytes * (1 + config.planner.headroom)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None

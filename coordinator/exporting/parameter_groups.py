"""The parameter groups of a run as the exporter specifies them, and the values that each order gives them."""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.config.parameter_groups import ParameterGroupConfig
from export.training_step import ParameterGroup


def compiled_groups(groups: Sequence[ParameterGroupConfig]) -> tuple[ParameterGroup, ...]:
    """What is compiled: which parameters have inputs of their own. The values are not part of it."""
    return tuple(
        ParameterGroup(match=group.match, lr_factor=group.lr_factor != 1.0, weight_decay=group.decay_kind)
        for group in groups
    )


def group_values(groups: Sequence[ParameterGroupConfig]) -> dict[str, float]:
    """Scalar input -> its value, of all groups."""
    values: dict[str, float] = {}
    for number, (group, compiled) in enumerate(zip(groups, compiled_groups(groups), strict=True), 1):
        given = {
            compiled.factor_name(number): group.lr_factor,
            compiled.decay_name(number): group.weight_decay or 0.0,
        }
        values |= {name: given[name] for name in compiled.hyper(number)}
    return values

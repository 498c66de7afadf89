"""The rule a run's configuration names, ready for a method; None for the method's own mean."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from coordinator.aggregation import AGGREGATIONS
from coordinator.aggregation.accumulator import Rule

if TYPE_CHECKING:
    from coordinator.aggregation.spilled_rule import SpilledRule
    from coordinator.config.aggregation import AggregationConfig


def rule_class(name: str) -> type[SpilledRule]:
    """The class of the rule ``name``."""
    module, _, class_name = AGGREGATIONS[name].partition(":")
    return cast("type[SpilledRule]", getattr(importlib.import_module(module), class_name))


def chosen_rule(config: AggregationConfig, folder: Path | None = None) -> Rule | None:
    """The rule of ``[aggregation]``.

    Args:
        folder: where a rule puts the round's values while it works; None = where temporary files are.
    """
    if config.rule == "mean":
        return None
    chosen: Any = rule_class(config.rule)
    rule = functools.partial(chosen, folder=folder)
    return functools.partial(rule, trim=config.trim) if chosen.takes_trim else rule

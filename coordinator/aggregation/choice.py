"""The rule a run's configuration names, ready for a method; None for the method's own mean."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.aggregation import AGGREGATIONS
from coordinator.aggregation.accumulator import Rule

if TYPE_CHECKING:
    from coordinator.configuration_aggregation import AggregationConfig

WITH_TRIM = frozenset({"trimmed_mean", "krum", "multi_krum"})
"""Rules that read ``trim``."""


def chosen_rule(config: AggregationConfig, folder: Path | None = None) -> Rule | None:
    """The rule of ``[aggregation]``.

    Args:
        folder: where a rule puts the round's values while it works; None = where temporary files are.
    """
    if config.rule == "mean":
        return None
    module, _, name = AGGREGATIONS[config.rule].partition(":")
    rule = functools.partial(getattr(importlib.import_module(module), name), folder=folder)
    return functools.partial(rule, trim=config.trim) if config.rule in WITH_TRIM else rule

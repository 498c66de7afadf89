"""Which committed round gave the best model by the coordinator's evaluation, and after which one training is over.

Both follow from the figures of the committed rounds alone, so that a run that was killed and resumed answers as one
that was not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from coordinator.config.run_config import FederationConfig

SERVER = "server"
"""The label of the global model among the evaluated ones."""


def score_of(entry: Mapping[str, Any], metric: str) -> float:
    """The global model's ``metric`` after a round; NaN where it was not evaluated."""
    value = entry.get("evaluation", {}).get(SERVER, {}).get(metric)
    return math.nan if value is None else float(value)


def is_better(value: float, best: float, *, is_lower: bool) -> bool:
    """Whether ``value`` is better than ``best``, which is NaN before the first; a value that is NaN never is.

    Args:
        is_lower: the lower the better.
    """
    if math.isnan(value) or math.isnan(best):
        return not math.isnan(value)
    return value < best if is_lower else value > best


def best_round(history: Iterable[Mapping[str, Any]], metric: str, *, is_lower: bool | None = None) -> int | None:
    """The ``round`` of the best entry of ``history``, the earliest of equal ones; None where none was evaluated.

    Args:
        is_lower: the metric is the better the lower it is; None: the loss is, others are not.
    """
    is_lower = metric == "loss" if is_lower is None else is_lower
    best, found = math.nan, None
    for entry in history:
        if is_better(value := score_of(entry, metric), best, is_lower=is_lower):
            best, found = value, int(entry["round"])
    return found


def rounds_until_stop(
    history: Iterable[Mapping[str, Any]], config: FederationConfig, *, is_lower: bool | None = None
) -> int:
    """How many rounds are trained: those of the run file, or those up to the ``patience``-th evaluation without a
    better one than before.

    Args:
        is_lower: as of :func:`best_round`.
    """
    is_lower = config.metric == "loss" if is_lower is None else is_lower
    best, waited = math.nan, 0
    for entry in history:
        if "evaluation" not in entry:
            continue
        if is_better(value := score_of(entry, config.metric), best, is_lower=is_lower):
            best, waited = value, 0
        else:
            waited += 1
        if config.patience and waited >= config.patience:
            return min(int(entry["round"]) + 1, config.rounds)
    return config.rounds

"""The metric by which one model of a run is better than another: that it is one, and which way it is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from coordinator.exporting.cut_exporter import dense_module
from coordinator.exporting.task import run_task
from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from coordinator.config.run_config import RunConfig

_OF_CHOICES = "choice_"
_BETTER: dict[tuple[str, str], Mapping[str, str]] = {}
"""Task and model of a run -> how its metrics are better: a model that brings its own task is built to be asked."""


def check_metric(config: RunConfig, module: nn.Module) -> None:
    """Check that the metric by which one model is better is one of the run's task.

    Raises:
        ConfigError: it is not; the message lists them.
    """
    metric, task = config.federation.metric, config.task.name
    known = ["loss", *run_task(config, module).better] if task else ["accuracy", "loss"]
    if (config.federation.keep_best or config.federation.patience) and metric not in known:
        raise ConfigError([f"$.federation.metric: '{metric}' is no metric of {task or 'classification'}: {known}"])
    if metric.startswith(_OF_CHOICES) and not config.evaluation.choices:
        raise ConfigError([f"$.federation.metric: '{metric}' is of questions; name their file: $.evaluation.choices"])


def task_measure(config: RunConfig) -> Callable[[Mapping[str, float], int, int], Mapping[str, float]]:
    """What the sums of program ``eval`` amount to by the run's task: (sums, examples, targets) to metrics and loss."""
    import numpy as np

    from export.task_steps import SUM

    task = run_task(config, dense_module(config))

    def measure(sums: Mapping[str, float], examples: int, targets: int) -> dict[str, float]:
        named: dict[str, dict[int, float]] = {}
        for name, value in sums.items():
            if name.startswith(SUM):
                whole, _, entry = name.removeprefix(SUM).rpartition(".")
                is_entry = bool(whole) and entry.isdigit()
                named.setdefault(whole if is_entry else name.removeprefix(SUM), {})[int(entry) if is_entry else -1] = (
                    value
                )
        arrays = {
            name: np.array(entries[-1]) if -1 in entries else np.array([entries[i] for i in sorted(entries)])
            for name, entries in named.items()
        }
        found = task.metrics({**arrays, "examples": np.array(float(examples))})
        return {**found, "loss": sums["loss"] / max(1, examples)}

    return measure


def is_lower_better(config: RunConfig) -> bool:
    """Whether the run's metric is the better the lower it is."""
    metric, key = config.federation.metric, (repr(config.task), repr(config.model))
    if not config.task.name or metric == "loss":
        return metric == "loss"
    if key not in _BETTER:
        _BETTER[key] = run_task(config, dense_module(config)).better
    return _BETTER[key].get(metric) == "lower"

"""What a coordinator makes of a configuration before it opens anything that other processes see."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from coordinator.config.run_config import RunConfig
from coordinator.data.datasets import Dataset, load_dataset
from coordinator.distillation.proxy import open_proxy
from coordinator.exporting.cut_exporter import dense_module, run_input_spec
from coordinator.methods import build_method
from coordinator.methods.method import Method
from coordinator.planning.heap import share_one_heap
from coordinator.rounds.evaluation import Evaluator
from coordinator.rounds.staleness import require_rebasing


@dataclass(frozen=True)
class Prepared:
    """What a process makes before it leads: it takes seconds, and needs neither ledger nor broker.

    Attributes:
        started: when, in monotonic seconds.
    """

    started: float
    method: Method
    dataset: Dataset
    evaluator: Evaluator


def prepare(config: RunConfig) -> Prepared:
    """Load the data and build the method of ``config``.

    Raises:
        ConfigError: something that it names is not there or does not go together.
    """
    started = time.monotonic()
    share_one_heap()  # before this process has threads that allocate
    dense = dense_module(config)
    method = build_method(config.method.name, dense, config.method.options)
    if config.aggregation.mode == "buffered":
        require_rebasing(method)
    dataset = load_dataset(
        config.data.source,
        Path(config.data.path) if config.data.path else None,
        config.federation.seed,
        config.evaluation.holdout,
    )
    dataset = open_proxy(method, config, dataset, run_input_spec(config))
    evaluator = Evaluator(
        lambda: dense_module(config),
        dataset.x_test,
        dataset.y_test,
        run_input_spec(config),
        batch=config.evaluation.batch,
        norm=config.evaluation.norm,
    )
    return Prepared(started, method, dataset, evaluator)

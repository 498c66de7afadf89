"""What a coordinator makes of a configuration before it opens anything that other processes see."""

from __future__ import annotations

import time
from dataclasses import dataclass

from coordinator.config.run_config import RunConfig
from coordinator.data.datasets import Dataset
from coordinator.distillation.proxy import open_proxy
from coordinator.exporting.cut_exporter import dense_module, run_input_spec
from coordinator.exporting.run_data import load_run_data
from coordinator.exporting.task_metric import check_metric
from coordinator.methods.method import Method
from coordinator.planning.heap import share_one_heap
from coordinator.rounds.evaluators import AnyEvaluator, run_evaluator
from coordinator.rounds.staleness import require_rebasing
from coordinator.run_file.checks import method_of_run


@dataclass(frozen=True)
class Prepared:
    """What a process makes before it leads: it takes seconds, and needs neither ledger nor broker.

    Attributes:
        started: when, in monotonic seconds.
    """

    started: float
    method: Method
    dataset: Dataset
    evaluator: AnyEvaluator


def prepare(config: RunConfig) -> Prepared:
    """Load the data and build the method of ``config``.

    Raises:
        ConfigError: something that it names is not there or does not go together.
    """
    started = time.monotonic()
    share_one_heap()  # before this process has threads that allocate
    dense = dense_module(config)
    method = method_of_run(config, dense)
    check_metric(config, dense)
    if config.aggregation.mode == "buffered":
        require_rebasing(method)
    dataset = load_run_data(config)
    dataset = open_proxy(method, config, dataset, run_input_spec(config))
    evaluator = run_evaluator(config, dataset.x_test, dataset.y_test)
    return Prepared(started, method, dataset, evaluator)

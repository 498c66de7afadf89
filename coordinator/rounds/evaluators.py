"""The evaluator of a run: by logits, or by its task."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from coordinator.exporting.base_file import computing_module
from coordinator.exporting.cut_exporter import class_names, dense_module, run_input_spec
from coordinator.exporting.task import run_task, task_batch_spec
from coordinator.rounds.evaluation import Evaluator
from coordinator.rounds.task_evaluation import TaskEvaluator

if TYPE_CHECKING:
    import numpy as np

    from coordinator.config.run_config import RunConfig

AnyEvaluator = Evaluator | TaskEvaluator


def run_evaluator(config: RunConfig, x: np.ndarray, y: np.ndarray, *, device: str = "cpu") -> AnyEvaluator:
    """What scores the models of a run on the held-out examples ``x``, ``y``.

    Raises:
        ConfigError, DataError: the task does not fit the model, or the examples do not fit the task.
    """
    spec, batch, norm = run_input_spec(config), config.evaluation.batch, config.evaluation.norm
    # A cut is made of a copy: one module is enough for all.
    dense = functools.cache(lambda: dense_module(config))
    if not config.task.name:
        return Evaluator(dense, x, y, spec, batch=batch, norm=norm, device=device)
    needs = task_batch_spec(config, dense(), spec, class_names(config))
    return TaskEvaluator(
        functools.cache(lambda: computing_module(config, device)),
        x,
        y,
        needs,
        lambda module: run_task(config, module),
        batch=batch,
        norm=norm,
        device=device,
    )

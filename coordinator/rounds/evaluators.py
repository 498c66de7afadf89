"""The evaluator of a run: by logits, or by its task."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from coordinator.exporting.base_file import computing_module
from coordinator.exporting.cut_exporter import class_names, dense_module, run_input_spec
from coordinator.exporting.run_choices import run_choices
from coordinator.exporting.task import run_task, task_batch_spec
from coordinator.rounds.evaluation import Evaluator
from coordinator.rounds.task_evaluation import TaskEvaluator
from edge.contracts.errors import ConfigError
from edge.language.questions import no_windows

if TYPE_CHECKING:
    import numpy as np

    from coordinator.config.run_config import RunConfig

AnyEvaluator = Evaluator | TaskEvaluator


def run_evaluator(
    config: RunConfig, x: np.ndarray, y: np.ndarray, *, device: str = "cpu", has_questions: bool = True
) -> AnyEvaluator:
    """What scores the models of a run on the held-out examples ``x``, ``y``, and on the run's questions.

    Args:
        has_questions: whether the run's questions, if there are any, are this evaluator's to ask.

    Raises:
        ConfigError, DataError: the task does not fit the model, or the examples do not fit the task.
    """
    spec, batch, norm = run_input_spec(config), config.evaluation.batch, config.evaluation.norm
    # A cut is made of a copy: one module is enough for all.
    dense = functools.cache(lambda: dense_module(config))
    precision = config.evaluation.precision
    if not config.task.name:
        return Evaluator(dense, x, y, spec, batch=batch, norm=norm, device=device, precision=precision)
    if precision != "float32":
        raise ConfigError([f"$.evaluation.precision: '{precision}' given; a task is scored in float32: leave it out"])
    choices = None
    if config.evaluation.choices:
        choices = run_choices(config) if has_questions else no_windows()
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
        choices=choices,
    )

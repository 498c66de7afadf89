"""The task of a step, whole: what its class leaves out is filled in."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from edge.contracts.errors import ApportionError, ConfigError
from edge.contracts.manifest import InputSpec
from export.tasks.module_steps import ModuleSteps
from export.tasks.task import Batch, Better, Model, class_target
from export.tasks.task_class import task_class
from export.training_step import BatchTensor, StepSpec

LOSS = "loss"
EXAMPLES = "examples"
"""Among the sums of :meth:`ResolvedTask.metrics`: how many examples they are of."""


class ResolvedTask:
    """Implements :class:`export.tasks.task.Task` over an object that may have a part of it."""

    def __init__(self, made: Any) -> None:
        self._made = made
        self.better: Mapping[str, Better] = getattr(made, "better", None) or {LOSS: "lower"}

    def tensors(self, input: InputSpec, classes: int) -> tuple[BatchTensor, ...]:
        if hasattr(self._made, "tensors"):
            return tuple(self._made.tensors(input, classes))
        return (class_target(classes),)

    def training_step(self, model: Model, batch: Batch) -> Tensor:
        return cast(Tensor, self._made.training_step(model, batch))

    def evaluation_step(self, model: Model, batch: Batch) -> Mapping[str, Tensor]:
        if hasattr(self._made, "evaluation_step"):
            return cast(Mapping[str, Tensor], self._made.evaluation_step(model, batch))
        return {}

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Metrics of the sums; where the task has no say, each one's mean over the examples."""
        if hasattr(self._made, "metrics"):
            return {name: float(value) for name, value in self._made.metrics(sums).items()}
        count = float(sums[EXAMPLES])
        scalars = {name: float(value) for name, value in sums.items() if value.ndim == 0 and name != EXAMPLES}
        return {name: value / count if count else 0.0 for name, value in scalars.items()}

    def predict(self, model: Model, batch: Batch) -> Tensor:
        if hasattr(self._made, "predict"):
            return cast(Tensor, self._made.predict(model, batch))
        return cast(Tensor, model(batch["x"]))


def resolve_task(name: str, options: Mapping[str, Any], module: nn.Module) -> ResolvedTask:
    """The task called ``name`` for ``module``.

    Raises:
        ConfigError: no such task, an option that it does not take or whose value it refuses, or an object without a
            training step.
    """
    kind = task_class(name)
    if kind is ModuleSteps and options:
        raise ConfigError([f"$.task.{sorted(options)[0]}: the task 'module' takes no options; give them to the model"])
    try:
        made = ModuleSteps(module) if kind is ModuleSteps else kind(**options)
    except ApportionError:
        raise
    except Exception as error:  # the class may be anyone's
        takes = ", ".join(inspect.signature(kind).parameters) or "none"
        raise ConfigError([f"$.task: {name}: {error}; its options: {takes}"]) from error
    if not callable(getattr(made, "training_step", None)):
        raise ConfigError([f"$.task.name: {name} has no training_step(model, batch)"])
    return ResolvedTask(made)


def task_of(spec: StepSpec, module: nn.Module) -> ResolvedTask:
    """The task of a step that has one."""
    return resolve_task(spec.task, spec.task_options, module)


def batch_tensors(task: ResolvedTask, name: str, input: InputSpec, classes: int) -> tuple[BatchTensor, ...]:
    """What a batch of ``task`` holds beside ``x``.

    Raises:
        ConfigError: the task does not fit the model's input, or says something else than tensors.
    """
    try:
        found: Sequence[object] = task.tensors(input, classes)
    except ApportionError:
        raise
    except Exception as error:  # as above
        raise ConfigError([f"$.task.name: {name}: {error}"]) from error
    wrong = [type(item).__name__ for item in found if not isinstance(item, BatchTensor)]
    if wrong:
        raise ConfigError([f"$.task.name: {name}: tensors() gave {wrong[0]}, apportion.BatchTensor expected"])
    return cast(tuple[BatchTensor, ...], tuple(found))

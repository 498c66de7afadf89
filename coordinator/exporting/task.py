"""The task of a run: what it adds to the step, and what data have to hold for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edge.contracts.manifest import InputSpec

if TYPE_CHECKING:
    from torch import nn

    from coordinator.config.run_config import RunConfig
    from edge.training.task_tensors import BatchSpec
    from export.tasks.resolved import ResolvedTask


def run_task(config: RunConfig, module: nn.Module) -> ResolvedTask:
    """The task that the run file names.

    Raises:
        ConfigError: as :func:`export.tasks.resolved.resolve_task`.
    """
    from export.tasks.resolved import resolve_task

    return resolve_task(config.task.name, config.task.options, module)


def task_fields(config: RunConfig, module: nn.Module, input: InputSpec, classes: int) -> dict[str, Any]:
    """What the task adds to the specification of a step; nothing of classification.

    Raises:
        ConfigError: as :func:`run_task`, or the task does not fit the model.
    """
    from export.tasks.resolved import batch_tensors

    if not config.task.name:
        return {}
    tensors = batch_tensors(run_task(config, module), config.task.name, input, classes)
    return {"task": config.task.name, "task_options": config.task.options, "tensors": tensors}


def task_batch_spec(config: RunConfig, module: nn.Module, input: InputSpec, classes: tuple[str, ...]) -> BatchSpec:
    """What data have to hold for the run's task."""
    from edge.contracts.tensors import BATCH, TensorSpec
    from edge.training.task_tensors import BatchSpec

    tensors = task_fields(config, module, input, len(classes))["tensors"]
    specs = tuple(TensorSpec(t.tensor, (BATCH, *t.shape), t.dtype, t.role) for t in tensors)
    symbols = {t.tensor: t.symbols for t in tensors if t.dtype == "int64"}
    return BatchSpec(config.task.name, input, classes, specs, symbols)

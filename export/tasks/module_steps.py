"""A model that brings its own ``training_step(batch)``, and perhaps the other parts of a task, as methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from edge.contracts.errors import ConfigError
from export.tasks.task import Batch, Model


class ModuleSteps:
    """The task of ``module``: its methods ``training_step(batch)``, ``evaluation_step(batch)``, ``predict(batch)``,
    ``tensors(input, classes)``, ``metrics(sums)`` and its attribute ``better``, of which the first one is needed.

    Raises:
        ConfigError: it has no ``training_step``.
    """

    def __init__(self, module: nn.Module) -> None:
        if not callable(getattr(module, "training_step", None)):
            raise ConfigError(
                [f"$.task.name: 'module' given, and {type(module).__name__} has no method training_step(batch)"]
            )
        for name in ("tensors", "metrics", "better"):
            if hasattr(module, name):
                setattr(self, name, getattr(module, name))
        for name in ("evaluation_step", "predict"):
            if hasattr(module, name):
                setattr(self, name, _called(name))

    def training_step(self, model: Model, batch: Batch) -> Tensor:
        loss: Tensor = model.method("training_step", batch)
        return loss


def _called(name: str) -> Any:
    def step(model: Model, batch: Batch) -> Mapping[str, Tensor] | Sequence[Tensor] | Tensor:
        found: Mapping[str, Tensor] | Tensor = model.method(name, batch)
        return found

    return step

"""What a task is: which tensors a batch has, the loss of a step, and the sums that metrics are made of.

The contract is the one people know. A task is any object with

- ``training_step(model, batch) -> loss``: the mean loss of a batch, a scalar; traced like the model into the compiled
  step, so everything in it has to be torch operations on tensors of fixed shapes, apart from the batch dimension;

and, each optional:

- ``tensors(input, classes) -> [BatchTensor, ...]``: the tensors of a batch beside ``x``; a class for each example where
  it says nothing;
- ``evaluation_step(model, batch) -> {name: sums}``: sums over the examples of a batch, each a tensor of a fixed shape;
- ``metrics(sums) -> {name: value}``: what the sums over all batches amount to, as NumPy arrays, with the number of
  ``examples`` among them;
- ``better``: metric -> ``higher`` or ``lower``, the first one is the task's own; ``loss`` where it says nothing;
- ``predict(model, batch) -> tensor``: what is given back for each example; ``model(batch["x"])`` where it says nothing.

``batch`` is a mapping of named tensors, each [batch, ...]: ``x``, what ``[data]`` normalises; ``y``; and further ones
by the names of the arrays in the data. ``model`` is called as the module itself is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from torch import Tensor

from edge.contracts.manifest import InputSpec
from export.training_step import BatchTensor

Batch = Mapping[str, Tensor]
Better = Literal["higher", "lower"]


class Model(Protocol):
    """The module as a task calls it."""

    def __call__(self, *inputs: Any, **named: Any) -> Any: ...

    def method(self, name: str, *inputs: Any) -> Any:
        """Method ``name`` of the module instead of its ``forward``."""


class Task(Protocol):
    """A task with all of its parts, see the module's text."""

    better: Mapping[str, Better]

    def tensors(self, input: InputSpec, classes: int) -> Sequence[BatchTensor]: ...

    def training_step(self, model: Model, batch: Batch) -> Tensor: ...

    def evaluation_step(self, model: Model, batch: Batch) -> Mapping[str, Tensor]: ...

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]: ...

    def predict(self, model: Model, batch: Batch) -> Tensor: ...


def class_target(classes: int, *shape: int) -> BatchTensor:
    """``y`` as one class for each example, or for each place of ``shape``."""
    return BatchTensor("y", shape, "int64", symbols=classes)


def ratio(part: np.ndarray, whole: np.ndarray) -> float:
    """``part / whole``, 0 of nothing."""
    return float(part / whole) if whole else 0.0

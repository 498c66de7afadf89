"""A tiny model for each ready task, and the step that trains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from edge.contracts.manifest import InputSpec
from export.tasks.resolved import batch_tensors, resolve_task
from export.training_step import Optimizer, StepSpec


class Tagger(nn.Module):
    """Symbols [batch, length] to logits [batch, classes, length], each position by itself and its neighbours."""

    def __init__(self, symbols: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, 8)
        self.mix = nn.Conv1d(8, classes, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.mix(self.embed(x).transpose(1, 2))
        return out


class OwnSteps(nn.Module):
    """A model that brings its own loss: what it says of two halves of its input has to agree, and to be near 1."""

    better: ClassVar = {"apart": "lower"}

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.1), nn.Linear(6, 1))

    def tensors(self, input: InputSpec, classes: int) -> tuple[()]:
        return ()

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        one, two = self.body(batch["x"][:, :4]), self.body(batch["x"][:, 4:])
        loss: Tensor = ((one - two) ** 2).mean() + torch.log(torch.cosh(one - 1)).mean()
        return loss

    def evaluation_step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"apart": (self.body(batch["x"][:, :4]) - self.body(batch["x"][:, 4:])).abs().sum()}

    def predict(self, batch: dict[str, Tensor]) -> Tensor:
        out: Tensor = self.body(batch["x"][:, :4])
        return out


@dataclass(frozen=True)
class Case:
    """A task with its model."""

    task: str
    build: Callable[[], nn.Module]
    input: InputSpec
    classes: int
    options: dict[str, Any] = field(default_factory=dict)

    def step(self, **more: Any) -> StepSpec:
        """Its step, with momentum, on batches of four."""
        task = resolve_task(self.task, self.options, self.build())
        return StepSpec(
            input=self.input,
            classes=self.classes,
            **{"batch": 4, "optimizer": Optimizer(weight_decay=False), **more},
            task=self.task,
            task_options=self.options,
            tensors=batch_tensors(task, self.task, self.input, self.classes),
        )


def _perceptron(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))


def _segmenter() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1))


FEATURES = InputSpec(layout="features", shape=(8,))
IMAGE = InputSpec(layout="chw", shape=(1, 6, 6))
SYMBOLS = InputSpec(layout="tokens", shape=(7,), dtype="int64", vocabulary=11)
FRAMES = InputSpec(layout="features", shape=(5, 9))

CASES = {
    "autoencoder": Case("autoencoder", lambda: _perceptron(8, 8), FEATURES, 1),
    "contrastive-pairs": Case("contrastive-pairs", lambda: _perceptron(8, 3), FEATURES, 1),
    "ctc": Case("ctc", lambda: nn.Conv1d(5, 4, 3, padding=1), FRAMES, 4, {"length": 3}),
    "module": Case("module", OwnSteps, FEATURES, 1),
    "multi-label": Case("multi-label", lambda: _perceptron(8, 3), FEATURES, 3),
    "next-token": Case("next-token", lambda: Tagger(11, 11), SYMBOLS, 11),
    "regression": Case("regression", lambda: _perceptron(8, 2), FEATURES, 2, {"loss": "huber"}),
    "segmentation": Case("segmentation", _segmenter, IMAGE, 3),
    "sequence-tagging": Case("sequence-tagging", lambda: Tagger(11, 4), SYMBOLS, 4),
}
"""By the name of the task."""

"""What a step's forward pass amounts to: the loss that is differentiated, and what an evaluation gives.

Two kinds: logits held against classes (:mod:`export.logits_objective`), with the losses that the papers' methods ask
for, and a task's own training step (:mod:`export.task_objective`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor, nn

from edge.contracts.tensors import TensorSpec
from export.capture import Capture, StepInput
from export.draws import Draws
from export.training_step import StepSpec

Values = Mapping[str, Tensor]


class Objective(Protocol):
    """Of one step, for any module that it is taken on."""

    def beside_input(self, spec: StepSpec, batch: int) -> list[StepInput]:
        """Inputs of the programs that a batch has beside the model's."""

    def training(
        self, module: nn.Module, spec: StepSpec, draws: Draws, state: Values, values: Values
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss over a batch, and what a step reports beside it.

        Args:
            state: parameters and running statistics by name; the latter are moved in place.
            values: the step's inputs by name.
        """

    def evaluation(self, module: nn.Module, spec: StepSpec, values: Values) -> dict[str, Tensor]:
        """Outputs of the program ``eval``: the summed loss, sums of metrics, and ``logits``, what is predicted."""

    def reported(self, spec: StepSpec, evaluation: Capture | None) -> tuple[TensorSpec, ...]:
        """Specs of everything that programs report; without an ``evaluation`` program, of what steps do."""

"""The objective of a step, and what its programs are fed of a batch."""

from __future__ import annotations

from torch import nn

from edge.contracts.tensors import BATCH, TensorSpec
from export.capture import StepInput
from export.draws import Draws
from export.logits_objective import LogitsObjective
from export.objective import Objective
from export.program_inputs import INPUT, draw_inputs, example_batch
from export.task_objective import TaskObjective
from export.training_step import StepSpec


def objective_of(spec: StepSpec) -> Objective:
    """The objective of a step: its task's, or that of logits held against classes."""
    return TaskObjective() if spec.task else LogitsObjective()


def batch_inputs(spec: StepSpec, module: nn.Module, *, whole: bool = False, draws: Draws = ()) -> list[StepInput]:
    """Inputs that are a batch, and what is drawn for one.

    Args:
        whole: with what a batch has beside the model's input.
    """
    x = example_batch(spec, module)
    inputs = [StepInput(TensorSpec(INPUT, (BATCH, *spec.input.shape), spec.input.dtype, "input"), x)]
    inputs += objective_of(spec).beside_input(spec, len(x)) if whole else []
    return inputs + draw_inputs(draws, len(x))

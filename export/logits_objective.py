"""Classification: logits held against classes, with masks of absent classes and a teacher where the step asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call

from edge.contracts.errors import ExportRefused
from edge.contracts.tensors import BATCH, TensorSpec
from export.capture import Capture, StepInput
from export.draws import Draws, undrawn
from export.objective import Values
from export.program_inputs import INPUT, LABEL_MASK, TARGET, state_buffers, teacher_name
from export.step_functions import distillation_loss, masked_logits, summed_loss
from export.training_step import StepSpec

CORRECT, LOGITS = "correct", "logits"


class LogitsObjective:
    """Implements :class:`export.objective.Objective` by :func:`export.step_functions.summed_loss`."""

    def beside_input(self, spec: StepSpec, batch: int) -> list[StepInput]:
        target = torch.empty((batch, *spec.target_shape), dtype=torch.int64)
        inputs = [StepInput(TensorSpec(TARGET, (BATCH, *spec.target_shape), "int64", "target"), target)]
        if spec.loss == "label_masked_cross_entropy":
            mask = TensorSpec(LABEL_MASK, (spec.classes,), "float32", "label_mask")
            inputs.append(StepInput(mask, torch.ones(spec.classes)))
        return inputs

    def training(
        self, module: nn.Module, spec: StepSpec, draws: Draws, state: Values, values: Values
    ) -> tuple[Tensor, dict[str, Tensor]]:
        logits = logits_of(module, state, values[INPUT], values.get(LABEL_MASK), spec)
        total, correct = summed_loss(logits, values[TARGET], spec)
        if spec.distillation:
            known = teacher_logits(module, spec, draws, values, list(state))
            weight, temperature = values["distillation_weight"], values["distillation_temperature"]
            total = total + distillation_loss(logits, known, weight, temperature)
        return total / values[TARGET].numel(), {CORRECT: correct}

    def evaluation(self, module: nn.Module, spec: StepSpec, values: Values) -> dict[str, Tensor]:
        logits = logits_of(module, values, values[INPUT], values.get(LABEL_MASK), spec)
        total, correct = summed_loss(logits, values[TARGET], spec)
        return {"loss": total, CORRECT: correct, LOGITS: logits}

    def reported(self, spec: StepSpec, evaluation: Capture | None) -> tuple[TensorSpec, ...]:
        steps = (TensorSpec("loss", (), "float32", "loss"), TensorSpec(CORRECT, (), "int64", "metric"))
        if evaluation is None:
            return steps
        return (*steps, TensorSpec(LOGITS, (BATCH, spec.classes, *spec.target_shape), "float32", "metric"))


def teacher_logits(
    module: nn.Module, spec: StepSpec, draws: Draws, values: Mapping[str, Tensor], names: Sequence[str]
) -> Tensor:
    """Logits of the received model, normalised as the student is and without its draws; statistics are left alone."""
    buffers = state_buffers(module)
    state = {n: values[teacher_name(n)] for n in names}
    state = {n: v.clone() if n in buffers else v for n, v in state.items()}
    with torch.no_grad(), undrawn(module) if draws else nullcontext():
        return logits_of(module, state, values[INPUT], values.get(LABEL_MASK), spec)


def logits_of(module: nn.Module, state: Values, x: Tensor, mask: Tensor | None, spec: StepSpec) -> Tensor:
    """Masked logits [batch, classes, ...] of a module with the values of ``state``.

    Raises:
        ExportRefused: it gives something else.
    """
    named = {n: state[n] for n, _ in module.named_parameters()} | {n: state[n] for n in state_buffers(module)}
    logits = functional_call(module, named, (x,))
    expected = (x.shape[0], spec.classes, *spec.target_shape)
    if not isinstance(logits, Tensor) or tuple(logits.shape) != expected:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ExportRefused(
            "(the module itself)",
            f"it returns {shape}, logits of shape {('batch', *expected[1:])} are needed",
            instead=f"a module with {spec.classes} classes in dim 1",
        )
    return masked_logits(logits, mask)

"""A task's own training and evaluation step as what is traced."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from edge.contracts.tensors import BATCH, DType, TensorSpec
from export.capture import Capture, StepInput
from export.draws import Draws
from export.model_call import ModelCall
from export.objective import Values
from export.program_inputs import state_buffers
from export.task_steps import LOGITS, SUM, evaluation_sums, task_batch, training_loss
from export.tasks.resolved import task_of
from export.training_step import StepSpec


class TaskObjective:
    """Implements :class:`export.objective.Objective` by the task that the step names."""

    def beside_input(self, spec: StepSpec, batch: int) -> list[StepInput]:
        inputs = []
        for tensor in spec.tensors:
            dtype = torch.float32 if tensor.dtype == "float32" else torch.int64
            made = TensorSpec(tensor.tensor, (BATCH, *tensor.shape), tensor.dtype, tensor.role)
            inputs.append(StepInput(made, torch.empty((batch, *tensor.shape), dtype=dtype)))
        return inputs

    def training(
        self, module: nn.Module, spec: StepSpec, draws: Draws, state: Values, values: Values
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss = training_loss(task_of(spec, module), _model(module, state), task_batch(spec, values), spec.task)
        return loss, {}

    def evaluation(self, module: nn.Module, spec: StepSpec, values: Values) -> dict[str, Tensor]:
        model = _model(module, values, keeps=True)
        return evaluation_sums(task_of(spec, module), model, task_batch(spec, values), spec.task)

    def reported(self, spec: StepSpec, evaluation: Capture | None) -> tuple[TensorSpec, ...]:
        loss = TensorSpec("loss", (), "float32", "loss")
        if evaluation is None:
            return (loss,)
        (output,) = evaluation.graph.graph.find_nodes(op="output")
        nodes = dict(zip(evaluation.outputs, output.args[0], strict=False))
        sums = [TensorSpec(name, (), "float32", "metric") for name in nodes if name.startswith(SUM)]
        predicted = nodes[LOGITS].meta["val"]
        sizes = [int(size) for size in predicted.shape[1:]]
        dtype = cast(DType, str(predicted.dtype).removeprefix("torch."))
        return (loss, *sums, TensorSpec(LOGITS, (BATCH, *sizes), dtype, "metric"))


def _model(module: nn.Module, state: Values, *, keeps: bool = False) -> ModelCall:
    names = [n for n, _ in module.named_parameters()] + list(state_buffers(module))
    return ModelCall(module, {n: state[n] for n in names}, keeps=keeps)

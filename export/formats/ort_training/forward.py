"""The half of a training step that the runtime differentiates: loss, metrics and moved running statistics."""

from __future__ import annotations

import torch
from torch import Tensor

from export.capture import Capture, capture
from export.draws import fed
from export.program_inputs import correction_name, state_buffers, teacher_name
from export.programs import ProgramFunction
from export.step_functions import check_pair
from export.step_objective import objective_of
from export.training_step import StepSpec, Variant
from export.variants import narrow_values, variant_spec, widened

OBJECTIVE = "objective"
"""What is differentiated where a penalty is added to the loss; elsewhere it is ``loss``."""
_ROLES = ("parameter", "frozen", "buffer", "teacher", "input", "target", "label_mask", "draw")
PENALTY_WEIGHT = "frobenius_lambda"
PROXIMAL_WEIGHT = "proximal_mu"
TEACHING = ("distillation_weight", "distillation_temperature")


def capture_forward(train: ProgramFunction, spec: StepSpec, variant: Variant | None = None) -> Capture:
    """The forward pass of the traced-to-be step ``train``; its first output is what is to be differentiated.

    Args:
        variant: what ``train`` is a part of the whole step by; inputs and running statistics are whole all the same.

    Raises:
        ExportRefused: as :func:`export.capture.capture`.
    """
    module = train.module
    names = [name for name, _ in module.named_parameters()]
    spec = spec if variant is None else variant_spec(spec, module)

    def forward(whole: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        with torch.no_grad():
            values = whole if variant is None else narrow_values(whole, variant)
            live = {name: values[name].clone() for name in state_buffers(module)}
            state = {name: values[name] for name in names} | live
            with fed(train.draws, values):
                loss, reported = objective_of(spec).training(module, spec, train.draws, state, values)
            outputs = {"loss": loss, **reported, **_moved(whole, live)}
            if spec.frobenius or spec.proximal or spec.corrected:
                outputs = {OBJECTIVE: loss + _penalty(values, spec, names), **outputs}
        return outputs, {}

    inputs = [
        i for i in train.inputs if i.spec.role in _ROLES or i.spec.name in (PENALTY_WEIGHT, PROXIMAL_WEIGHT, *TEACHING)
    ]
    return capture(forward, inputs, module)


def _moved(whole: dict[str, Tensor], live: dict[str, Tensor]) -> dict[str, Tensor]:
    """Running statistics as they come back; of those a variant takes part in, the rest as it was."""
    return {f"next:{name}": widened(whole[name], value) for name, value in live.items()}


def _penalty(values: dict[str, Tensor], spec: StepSpec, names: list[str]) -> Tensor:
    """lambda/2 * sum over pairs of ||U V||_F^2 = <U^T U, V V^T>, mu/2 * sum of ||w - w_received||^2, and the sum of
    <correction, w>, whose gradient is the correction.

    Source: FedHM, Frobenius decay; FedProx, equation 2; SCAFFOLD, equation 3.
    """
    total = torch.zeros(())
    for pair in spec.frobenius:
        check_pair(pair, values)
        v_R = values[pair.v].reshape(values[pair.v].shape[0], -1)
        u_R = values[pair.u].transpose(0, 1).reshape(v_R.shape[0], -1)
        total = total + ((u_R @ u_R.t()) * (v_R @ v_R.t())).sum()
    total = 0.5 * values[PENALTY_WEIGHT] * total if spec.frobenius else total
    for name in (n for n in names if n not in spec.frozen):
        if spec.proximal:
            apart = values[name] - values[teacher_name(name)]
            total = total + 0.5 * values[PROXIMAL_WEIGHT] * (apart * apart).sum()
        if spec.corrected:
            total = total + (values[correction_name(name)] * values[name]).sum()
    return total

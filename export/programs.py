"""The programs of an artifact, written in torch and traced: ``train``, ``eval``, ``stats``, ``eval_static``.

What is traced is an ordinary function of named tensors; simulated devices call it as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from edge.contracts.tensors import GRADIENT_SUM
from edge.runtimes.micro_batches import ACCUMULATE, gradient_sum
from export import loss_probe, norm_statistics
from export.capture import Capture, StepFunction, StepInput, capture
from export.draws import Draws, draws_of, fed, undrawn
from export.forms.kept_activations import keeping_activations, kept_once
from export.prepared_module import batch_norms, moving_norms, prepared_module, with_statistics
from export.program_inputs import (
    correction_name,
    mask_name,
    scalar_input,
    square_name,
    state_buffers,
    state_input,
    teacher_name,
    weight_inputs,
)
from export.step_functions import (
    STEP_SLOT,
    add_correction,
    add_penalty,
    add_proximal,
    clipped,
    updated,
)
from export.step_objective import batch_inputs, objective_of
from export.traceable_module import LOOPS, traceable_module
from export.training_step import StepSpec, Variant
from export.variants import draw_suffix, narrow_values, variant_module, variant_spec, widened

GradientFunction = Callable[[dict[str, Tensor]], tuple[dict[str, Tensor], dict[str, Tensor | None]]]


@dataclass(frozen=True)
class ProgramFunction:
    """A program before it is traced.

    Attributes:
        function: named inputs to (outputs, hidden values). Run eagerly it writes running statistics in place, into the
            tensors it was given, and gives them back among its outputs.
        inputs: specs and examples, in graph order.
        module: what the function calls, in the mode it is to be called in.
        draws: where its forward pass draws random numbers, which are among the inputs.
        moved: of ``stats``: the buffers that it gives.
        gradients: of a whole step: its part before the update. Takes the named inputs, gives what the step reports and
            the gradients of the trained parameters; None for one that the loss does not reach through autograd.
    """

    function: StepFunction
    inputs: tuple[StepInput, ...]
    module: nn.Module
    draws: Draws = ()
    gradients: GradientFunction | None = None
    moved: tuple[str, ...] = ()


def capture_programs(
    module: nn.Module, spec: StepSpec, *, loops: frozenset[str] = LOOPS, whole: frozenset[Any] = frozenset()
) -> dict[str, Capture]:
    """Program name -> traced program, of every program of :func:`program_functions`.

    Args:
        loops: recurrent layers the format takes as one operation.
        whole: as :func:`export.capture.capture`.

    Raises:
        ExportRefused: as :func:`export.prepared_module.prepared_module` and :func:`export.capture.capture`.
    """
    programs = program_functions(module, spec, loops=loops)
    captures = {name: capture(p.function, p.inputs, p.module, whole) for name, p in programs.items()}
    return {name: kept_once(program) for name, program in captures.items()} if spec.kept_activations else captures


def program_functions(
    module: nn.Module, spec: StepSpec, *, loops: frozenset[str] = LOOPS
) -> dict[str, ProgramFunction]:
    """Program name -> the function that is traced for it.

    ``accumulate`` exists where the step goes by micro-batches, ``train_probe`` where the step asks for it. In ``batch``
    norm mode modules with batch norm have ``eval_static``, which evaluates with the statistics that ``stats`` gives.
    ``stats`` exists where some batch norm's statistics may move: not where all of them are frozen and static.

    Args:
        loops: recurrent layers that are one operation of ours instead of torch's.

    Raises:
        ExportRefused: as :func:`export.prepared_module.prepared_module`.
    """
    prepared = prepared_module(module, spec)
    draws = draws_of(prepared, spec)
    prepared = traceable_module(prepared, loops)
    plain = _train(prepared, spec, draws)
    programs = {"train": plain}
    if spec.accumulates:
        programs = {ACCUMULATE: _accumulate(prepared, spec, draws), "train": plain}
    for variant in spec.variants:
        programs[variant.program] = _train_variant(module, spec, variant, plain, loops)
    if spec.probe:
        programs[loss_probe.PROGRAM] = _probe(module, spec, loops)
    programs["eval"] = _eval(prepared, spec, draws)
    if batch_norms(module):
        static = with_statistics(prepared)
        if moving := moving_norms(prepared):
            programs[norm_statistics.PROGRAM] = _stats(static, spec, draws, moving)
        if spec.norm == "batch":
            programs["eval_static"] = _eval(static, spec, draws)
    return programs


def _train(module: nn.Module, spec: StepSpec, draws: Draws) -> ProgramFunction:
    """The step; by micro-batches its end alone, which reads what ``accumulate`` added up."""
    params = dict(module.named_parameters())
    trained = [name for name in params if name not in spec.frozen]
    if spec.accumulates:
        inputs = [state_input(n, params[n], "parameter") for n in trained]
        inputs += [state_input(gradient_sum(n), params[n], "slot") for n in trained]
        inputs += _rule_inputs(params, spec)
        inputs += [scalar_input(n) for n in _end_hyper(spec)]
        return ProgramFunction(partial(_end_step, spec), tuple(inputs), module)
    inputs = _seen(module, spec, _rule_inputs(params, spec))
    inputs += batch_inputs(spec, module, whole=True, draws=draws) + [scalar_input(n) for n in spec.hyper]
    return ProgramFunction(
        partial(_train_step, module, spec, draws),
        tuple(inputs),
        module,
        draws,
        partial(_reached_gradients, module, spec, draws),
    )


def _accumulate(module: nn.Module, spec: StepSpec, draws: Draws) -> ProgramFunction:
    """Loss and gradients of one micro-batch, as its share of the whole batch's."""
    params = dict(module.named_parameters())
    sums = [state_input(gradient_sum(n), p, "slot") for n, p in params.items() if n not in spec.frozen]
    inputs = _seen(module, spec, sums) + batch_inputs(spec, module, whole=True, draws=draws)
    inputs += [scalar_input(n) for n in spec.hyper if n not in _end_hyper(spec)]
    return ProgramFunction(partial(_accumulate_step, module, spec, draws), tuple(inputs), module, draws)


def _end_hyper(spec: StepSpec) -> tuple[str, ...]:
    """Scalars that the end of a step reads."""
    return (*spec.optimizer.hyper, *spec.group_hyper, *(("clip_norm",) if spec.clip_norm else ()))


def _seen(module: nn.Module, spec: StepSpec, between: list[StepInput]) -> list[StepInput]:
    """What forward and backward pass read, apart from the batch; ``between`` comes after the parameters."""
    buffers = state_buffers(module)
    inputs = [*weight_inputs(module, spec, {}), *between, *(state_input(n, b, "buffer") for n, b in buffers.items())]
    if spec.distillation:
        params = dict(module.named_parameters())
        inputs += [state_input(teacher_name(n), v, "teacher") for n, v in (params | buffers).items()]
    elif spec.proximal:
        inputs += [
            state_input(teacher_name(n), p, "teacher") for n, p in module.named_parameters() if n not in spec.frozen
        ]
    if spec.corrected:
        trained = [(n, p) for n, p in module.named_parameters() if n not in spec.frozen]
        inputs += [state_input(correction_name(n), p, "teacher") for n, p in trained]
    return inputs


def _rule_inputs(params: Mapping[str, Tensor], spec: StepSpec) -> list[StepInput]:
    """What the end of a step reads beside parameters and gradients."""
    trained = [name for name in params if name not in spec.frozen]
    inputs = [state_input(f"{n}#{s}", params[n], "slot") for n in trained for s in spec.optimizer.slots]
    if spec.optimizer.kind != "sgd":
        inputs.append(state_input(STEP_SLOT, torch.zeros(()), "slot"))
    inputs += [state_input(square_name(n), params[n], "accumulator") for n in spec.squared_gradient if n in params]
    return inputs + [state_input(mask_name(n), params[n].bool(), "grad_mask") for n in spec.masked if n in params]


def _train_variant(
    module: nn.Module, spec: StepSpec, variant: Variant, plain: ProgramFunction, loops: frozenset[str]
) -> ProgramFunction:
    """The step of the variant's module, its tensors taken from and put back into the whole ones."""
    part = variant_module(module, variant)
    part_spec = variant_spec(spec, part)
    prepared = prepared_module(part, part_spec)
    draws = draws_of(prepared, part_spec, suffix=draw_suffix(variant))
    prepared = traceable_module(prepared, loops)
    used = {item.spec.name for item in _train(prepared, part_spec, ()).inputs}
    inputs = [item for item in plain.inputs if item.spec.name in used]
    inputs += batch_inputs(spec, module, draws=draws)[1:]

    def step(values: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        outputs, hidden = _train_step(prepared, part_spec, draws, narrow_values(values, variant))
        whole = {
            n: widened(values[state], v) if (state := n.removeprefix("next:")) in values and n != state else v
            for n, v in outputs.items()
        }
        return whole, hidden

    return ProgramFunction(step, tuple(inputs), prepared, draws)


def _train_step(
    module: nn.Module, spec: StepSpec, draws: Draws, values: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """One step on named values: (loss, correct and the new state), (the gradients before clipping and masks)."""
    reported, gradients, live = _gradients(module, spec, draws, values)
    new, _ = _end_step(spec, values, gradients)
    hidden = {f"grad:{n}": g for n, g in gradients.items()}
    return reported | new | {f"next:{n}": v for n, v in live.items()}, hidden


def _accumulate_step(
    module: nn.Module, spec: StepSpec, draws: Draws, values: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """One micro-batch on named values: (its share of loss, correct, and the new sums), (its share of the gradients)."""
    reported, gradients, _ = _gradients(module, spec, draws, values)
    sums = {f"next:{gradient_sum(n)}": values[gradient_sum(n)] + g for n, g in gradients.items()}
    return reported | sums, {f"grad:{n}": g for n, g in gradients.items()}


def _gradients(
    module: nn.Module, spec: StepSpec, draws: Draws, values: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """What the step reports, gradients with the penalty's, moved running statistics; of a micro-batch its share."""
    reported, reached = _reached_gradients(module, spec, draws, values)
    gradients = {n: torch.zeros_like(values[n]) if g is None else g for n, g in reached.items()}
    scalars = {n: values[n] for n in spec.hyper if n in values}
    if spec.frobenius:
        weight = scalars["frobenius_lambda"]
        add_penalty(gradients, values, spec, weight / spec.micro_batches if spec.accumulates else weight)
    if spec.proximal:
        weight = scalars["proximal_mu"]
        add_proximal(gradients, values, weight / spec.micro_batches if spec.accumulates else weight)
    if spec.corrected:
        add_correction(gradients, values, 1.0 / spec.micro_batches)
    return reported, gradients, {n: values[n] for n in state_buffers(module)}


def _reached_gradients(
    module: nn.Module, spec: StepSpec, draws: Draws, values: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor | None]]:
    """What the step reports, and the loss's gradients as autograd gives them, without penalties."""
    names = [n for n, _ in module.named_parameters()]
    trained = [n for n in names if n not in spec.frozen]
    leaves = {n: values[n].detach().requires_grad_(n not in spec.frozen) for n in names}
    live = {n: values[n] for n in state_buffers(module)}
    with fed(draws, values):
        with keeping_activations(spec, [*leaves.values(), *values.values()]):
            loss, reported = objective_of(spec).training(module, spec, draws, {**leaves, **live}, values)
        loss = loss / spec.micro_batches if spec.accumulates else loss
        flat = torch.autograd.grad(loss, [leaves[n] for n in trained], allow_unused=True)
    return {"loss": loss.detach(), **reported}, dict(zip(trained, flat, strict=True))


def _end_step(
    spec: StepSpec, values: dict[str, Tensor], gradients: Mapping[str, Tensor] | None = None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The new state from the whole batch's gradients; without any, from their sums."""
    if gradients is None:
        gradients = {n.removesuffix(GRADIENT_SUM): v for n, v in values.items() if n.endswith(GRADIENT_SUM)}
    scalars = {n: values[n] for n in spec.hyper if n in values}
    squared = [n for n in spec.squared_gradient if n in gradients]
    sums = {square_name(n): values[square_name(n)] + gradients[n] * gradients[n] for n in squared}
    masks = {n: values[mask_name(n)].to(values[n].dtype) for n in spec.masked if n in gradients}
    gradients = {n: g * masks[n] if n in masks else g for n, g in gradients.items()}
    if spec.clip_norm:
        gradients = clipped(gradients, scalars["clip_norm"])
    new = updated(spec, values, gradients, values, scalars, masks) | sums
    return {f"next:{n}": v for n, v in new.items()}, {}


def _probe(module: nn.Module, spec: StepSpec, loops: frozenset[str]) -> ProgramFunction:
    """Losses of three sets of weights on one batch; the weights of the other two are read alone, as a teacher's."""
    prepared = prepared_module(module, loss_probe.probe_step(spec))
    draws = draws_of(prepared, spec)
    prepared = traceable_module(prepared, loops)
    params = dict(prepared.named_parameters())
    inputs = weight_inputs(prepared, spec, {})
    inputs += [state_input(n + loss_probe.PREVIOUS, p, "teacher") for n, p in params.items()]
    inputs += [state_input(n + loss_probe.THRESHOLD, torch.zeros(()), "teacher") for n in spec.masked]
    inputs.append(state_input(loss_probe.LOSSES, torch.zeros(4), "accumulator"))
    inputs += batch_inputs(spec, prepared, whole=True)

    def probe(values: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        with undrawn(prepared) if draws else nullcontext():
            return loss_probe.probed(prepared, spec, values)

    return ProgramFunction(probe, tuple(inputs), prepared)


def _eval(module: nn.Module, spec: StepSpec, draws: Draws) -> ProgramFunction:
    """The summed loss, sums of metrics, so that a dataset's are exact at any batch, and what is predicted."""
    module = copy.deepcopy(module).eval()
    buffers = state_buffers(module)

    def evaluate(values: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        with torch.no_grad(), undrawn(module) if draws else nullcontext():
            return objective_of(spec).evaluation(module, spec, values), {}

    return ProgramFunction(
        evaluate, (*weight_inputs(module, spec, buffers), *batch_inputs(spec, module, whole=True)), module
    )


def _stats(module: nn.Module, spec: StepSpec, draws: Draws, moving: Sequence[str]) -> ProgramFunction:
    module = norm_statistics.gathering(module, moving)
    batch = batch_inputs(spec, module, whole=bool(spec.task))
    inputs = (*weight_inputs(module, spec, state_buffers(module)), *batch, scalar_input(norm_statistics.MOMENTUM))
    function = partial(norm_statistics.gathered, module, spec, draws, moving)
    return ProgramFunction(function, inputs, module, moved=norm_statistics.moved_by(moving))

"""The parity gate of a language model's step: its shipped graphs against torch float64 over the same dequantised base.

The first step gives the loss, every factor's gradient and what an evaluation adds up, beside torch's autograd of the
module's own blocks. Three steps in a row give the update rule, beside torch's own optimizer on the graph's gradients,
and the loss of each, beside torch's at the factors that the graph had by then. The base is formula values, so that an
artifact depends on shapes alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from edge.contracts.errors import ParityError
from edge.contracts.manifest import Parity, SelfTest
from edge.contracts.tensors import FEATURES, TensorSpec
from edge.runtimes.micro_batches import ACCUMULATE, TRAIN
from edge.runtimes.onnxruntime.file_order import ask_for_file_order
from export.formats.onnx_language.features_gate import begun, check_features, features_in
from export.formats.onnx_language.update_reference import UpdateReference
from export.gate_values import Setting, gate_values, self_test_on
from export.graph_session import GraphSession
from export.language.causal_model import CausalModel
from export.language.reference import LanguageReference
from export.micro_batch_run import MicroBatched, ProgramRun
from export.parity import check_worst, one_thread
from export.task_steps import SUM
from export.tasks.class_places import IGNORED
from export.tensor_error import FACTOR, FLOOR, relative_errors, worst_error
from export.training_step import INPUT, TARGET, StepSpec

STEPS = 3
_POSITIONS = 192
"""Positions of the gate's batch at least, where an example is shorter."""
_TOLERANCE = 1e-4
"""Of a self-test's losses, relative: other processors sum in another order."""


def check_language(
    module: CausalModel, spec: StepSpec, programs: Mapping[str, bytes], tensors: Iterable[TensorSpec]
) -> Parity:
    """Compare every program with torch and report the figures.

    Raises:
        ParityError: naming the program and the worst tensor, with its error, the tolerance and torch float32's own.
    """
    specs = list(tensors)
    values = _values(spec, specs)
    trained = [s.name for s in specs if s.role == "parameter"]
    with one_thread():
        values = features_in(programs, values)
        check_features(module, spec, values, trained)
        exact, single = (_torch_step(module, spec, values, trained, d) for d in (torch.float64, torch.float32))
        run = _opened(programs, spec, [f"grad:{name}" for name in trained])
        outputs = run.run(values)
        got = {name: outputs[f"grad:{name}"] for name in trained}
        check_worst("gradients of one step", worst_error(got, exact[1], single[1]))
        loss_error = _check_loss(1, outputs, (exact[0], single[0]))
        _check_evaluation(module, spec, programs["eval"], values, trained)
        _check_updates(module, spec, run, outputs, values, trained)
    error, own = (max(relative_errors(g, exact[1]).values()) for g in (got, single[1]))
    return Parity(
        max_grad_rel_err=error,
        torch_fp32_rel_err=own,
        loss_rel_err=loss_error,
        tolerance=FACTOR * max(own, FLOOR),
        steps=STEPS,
    )


def self_test_of(
    module: CausalModel, spec: StepSpec, programs: Mapping[str, bytes], tensors: Iterable[TensorSpec]
) -> SelfTest:
    """Formula, seed and losses of :data:`STEPS` steps in a row, the first of them held to torch's."""
    specs = list(tensors)
    setting = _setting(spec)
    values = features_in(programs, gate_values(spec, specs, seed=1, masked=False, setting=setting))
    losses = losses_of(programs, spec, values, steps=STEPS)
    with one_thread(), torch.no_grad():
        factors = _factors(values, [s.name for s in specs if s.role == "parameter"], torch.float32)
        expected = float(_loss(module, spec, values, factors, torch.float32))
    if not abs(losses[0] - expected) <= _TOLERANCE * abs(expected):
        raise ParityError(f"self-test: the first loss is {losses[0]:.6g}, torch's {expected:.6g}; do not use the graph")
    return self_test_on(spec, 1, setting, losses, _TOLERANCE)


def losses_of(
    programs: Mapping[str, bytes], spec: StepSpec, values: Mapping[str, np.ndarray], *, steps: int
) -> tuple[float, ...]:
    """Losses of the first ``steps`` steps from ``values``, each from the state that the last one left."""
    run, feeds, losses = _opened(programs, spec), features_in(programs, values), []
    for _ in range(steps):
        outputs = run.run(feeds)
        losses.append(float(outputs["loss"]))
        feeds |= _written(outputs)
    return tuple(losses)


def _setting(spec: StepSpec) -> Setting:
    """As many examples as :data:`_POSITIONS` holds, whole micro-batches of them."""
    return Setting(batch=max(1, _POSITIONS // spec.input.shape[0]))


def _values(spec: StepSpec, specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    values = gate_values(spec, specs, seed=1, setting=_setting(spec))
    values[TARGET][..., ::5] = IGNORED
    return values


def _opened(programs: Mapping[str, bytes], spec: StepSpec, extra: Sequence[str] = ()) -> ProgramRun:
    if spec.accumulates:
        return MicroBatched(
            programs[ACCUMULATE], programs[TRAIN], spec.micro_batches, set_options=ask_for_file_order
        ).opened()
    return GraphSession(programs[TRAIN], extra, set_options=ask_for_file_order)


def _written(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix("next:"): value for name, value in outputs.items() if name.startswith("next:")}


def _factors(values: Mapping[str, np.ndarray], trained: Sequence[str], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.array(values[name])).to(dtype) for name in trained}


def _loss(
    module: CausalModel,
    spec: StepSpec,
    values: Mapping[str, np.ndarray],
    factors: Mapping[str, Tensor],
    dtype: torch.dtype,
) -> Tensor:
    """The mean over the micro-batches of each one's mean."""
    reference = LanguageReference(module, values, dtype)
    parts = {n: np.split(values[n], spec.micro_batches) for n in (INPUT, TARGET, FEATURES) if n in values}
    losses = []
    for number in range(spec.micro_batches):
        part = {name: pieces[number] for name, pieces in parts.items()}
        losses.append(reference.loss(factors, part[INPUT], part[TARGET], begun=begun(module, spec, part)))
    return torch.stack(losses).mean()


def _torch_step(
    module: CausalModel, spec: StepSpec, values: Mapping[str, np.ndarray], trained: Sequence[str], dtype: torch.dtype
) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients by autograd."""
    factors = {name: value.requires_grad_() for name, value in _factors(values, trained, dtype).items()}
    loss = _loss(module, spec, values, factors, dtype)
    gradients = torch.autograd.grad(loss, list(factors.values()))
    return float(loss.detach()), {n: g.numpy() for n, g in zip(factors, gradients, strict=True)}


def _check_loss(step: int, outputs: Mapping[str, np.ndarray], torch_losses: Sequence[float]) -> float:
    """Its relative error; ``torch_losses`` are float64's and float32's."""
    got, exact, single = ({"loss": np.array(float(loss))} for loss in (outputs["loss"].item(), *torch_losses))
    return check_worst(f"loss of step {step}", worst_error(got, exact, single)).error


def _check_evaluation(
    module: CausalModel, spec: StepSpec, program: bytes, values: Mapping[str, np.ndarray], trained: Sequence[str]
) -> None:
    outputs = GraphSession(program, set_options=ask_for_file_order).run(values)
    sums = []
    for dtype in (torch.float64, torch.float32):
        reference = LanguageReference(module, values, dtype)
        sums.append(reference.sums(_factors(values, trained, dtype), values[INPUT], values[TARGET]))
    for name in sums[0]:
        found, exact, single = ({name: np.array(v)} for v in (outputs[SUM + name], sums[0][name], sums[1][name]))
        check_worst(f"program eval: {name}", worst_error(found, exact, single))
    mean = sums[0]["entropy"] / max(sums[0]["positions"], 1.0) * len(values[INPUT])
    if not abs(float(outputs["loss"]) - mean) <= 1e-5 * abs(mean):
        raise ParityError(f"program eval: loss {float(outputs['loss']):.7g}, {mean:.7g} expected; do not use the graph")


def _check_updates(
    module: CausalModel,
    spec: StepSpec,
    run: ProgramRun,
    outputs: Mapping[str, np.ndarray],
    values: Mapping[str, np.ndarray],
    trained: Sequence[str],
) -> None:
    """The rule of :data:`STEPS` steps, and the loss of every later one."""
    feeds = dict(values)
    rules = [UpdateReference(spec, _factors(values, trained, d), values) for d in (torch.float64, torch.float32)]
    for step in range(1, STEPS + 1):
        if step > 1:
            outputs = run.run(feeds)
            losses = []
            for dtype in (torch.float64, torch.float32):
                with torch.no_grad():
                    loss = _loss(module, spec, feeds, _factors(feeds, trained, dtype), dtype)
                losses.append(float(loss))
            _check_loss(step, outputs, losses)
        written = _written(outputs)
        gradients = {name: outputs[f"grad:{name}"] for name in trained}
        exact, single = (rule.step(gradients) for rule in rules)
        if missing := exact.keys() - written.keys():
            raise ParityError(f"train: the graph does not update {sorted(missing)[:3]}; it is wrong, do not use it")
        moves = [{n: after[n] - values[n].astype(np.float64) for n in exact} for after in (written, exact, single)]
        for kind in sorted({n.rpartition("#")[2] if "#" in n else "parameter" for n in exact}):
            names = [n for n in exact if (n.rpartition("#")[2] if "#" in n else "parameter") == kind]
            got, true, rounded = ({n: move[n] for n in names} for move in moves)
            check_worst(f"what {step} steps do to each {kind}", worst_error(got, true, rounded))
        feeds |= written

"""The parity gate: every exported program against torch float64, before anybody may use it.

The first step of the shipped ``train`` graph gives the loss, every gradient (values named ``grad:<parameter>``, made
outputs for this run only) and every updated tensor; then the fourth step does, from the state that torch has by then,
so that slots are filled, in a session that has taken a step already. The tolerance is ten times what torch float32
itself loses against float64 in the same step. Several steps in a row are the self-test's (:mod:`export.self_test`).
On which values, and what may disagree by chance: :mod:`export.agreement`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np
import torch
from torch import nn

from edge.contracts.errors import ParityError
from edge.contracts.manifest import Parity
from edge.contracts.tensors import GRADIENT_SUM, STATE_ROLES, TensorSpec
from export.agreement import Reference, agreeing_or_noisy
from export.formats.onnx_step.session import GraphSession
from export.gate_values import gate_values
from export.loss_probe import LOSSES, reference_losses
from export.loss_probe import PROGRAM as PROBE
from export.micro_batch_run import MicroBatched, ProgramRun
from export.prepared_module import batch_norms, prepared_module, with_statistics
from export.program_inputs import INPUT, TARGET
from export.programs import STATS_MOMENTUM
from export.reference import evaluated, module_with
from export.tensor_error import Worst, worst_error
from export.training_step import StepSpec, Variant
from export.variants import narrowed_specs, put_back, variant_module, variant_sizes, variant_spec

STEPS = 4
"""The step compared beside the first one."""


Openable = bytes | MicroBatched | Callable[[], ProgramRun]
"""A program as the gate takes it: an ONNX model's bytes, two of them, or what opens another format's."""


def check_parity(
    module: nn.Module, spec: StepSpec, programs: Mapping[str, Openable], tensors: Iterable[TensorSpec]
) -> Parity:
    """Compare every program (name -> ONNX bytes) with torch and report the figures.

    Raises:
        ParityError: naming the program and the worst tensor, with its error, the tolerance and torch float32's own.
    """
    known = list(tensors)
    plain = msgspec.structs.replace(spec, variants=())
    with one_thread():
        results = [_check_variant(module, spec, variant, programs[variant.program], known) for variant in spec.variants]
        if all(variant.name for variant in spec.variants):
            results.append(_checked(module, plain, programs, known))
        else:  # the variant without a name is ``train``; the other programs are the whole module's all the same
            values = gate_values(plain, known)
            _check_evaluation(module, plain, programs, values)
            if "stats" in programs:
                _check_statistics(module, plain, programs["stats"], values)
    return max(results, key=lambda parity: parity.max_grad_rel_err / parity.tolerance)


class _PartRun:
    """A variant's program on values in the variant's shapes; entries outside it must come back as they went in."""

    def __init__(self, run: ProgramRun, variant: Variant, whole: Mapping[str, np.ndarray]) -> None:
        self._run, self._variant, self._whole = run, variant, whole

    @property
    def outputs(self) -> Sequence[str]:
        return self._run.outputs

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        wide = {n: put_back(self._whole[n], v) if self._sizes(n) else v for n, v in feeds.items()}
        outputs = self._run.run(wide)
        for name, value in outputs.items():
            sizes = self._sizes(name.removeprefix("next:"))
            if not name.startswith("next:") or sizes is None:
                continue
            outputs[name] = value[tuple(slice(0, size) for size in sizes)]
            if not np.array_equal(value, put_back(wide[name.removeprefix("next:")], outputs[name])):
                raise ParityError(
                    f"program {self._variant.program}: '{name.removeprefix('next:')}' moves outside the variant's "
                    f"{sizes}; the graph is wrong, do not use it"
                )
        return outputs

    def _sizes(self, name: str) -> tuple[int, ...] | None:
        return variant_sizes(self._variant, name) if name in self._whole else None


def _check_variant(
    module: nn.Module, spec: StepSpec, variant: Variant, program: Openable, tensors: list[TensorSpec]
) -> Parity:
    """The gate for one variant: the plain gate of its own module on its own shapes."""
    part = variant_module(module, variant)
    part_spec = variant_spec(spec, part)
    names = {n for n, _ in (*part.named_parameters(), *part.named_buffers())}
    state = [t for t in tensors if t.role not in STATE_ROLES or t.name.partition("#")[0] in {*names, "optimizer"}]
    whole = gate_values(spec, tensors)
    gradients = [f"grad:{n}" for n, _ in part.named_parameters() if n not in spec.frozen]
    return _checked(
        part,
        part_spec,
        {"train": lambda: _PartRun(_opened(program, gradients), variant, whole)},
        narrowed_specs(state, variant),
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread: sums of the same order every time, and no threads waiting for each other on tiny tensors."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _checked(module: nn.Module, spec: StepSpec, programs: Mapping[str, Openable], tensors: list[TensorSpec]) -> Parity:
    known: dict[int, Reference] = {}

    def reference(seed: int) -> Reference:
        if seed not in known:
            known[seed] = Reference(module, spec, tensors, seed)
        return known[seed]

    def whole(values: Reference) -> Parity:
        gradients = _check_gradients(programs["train"], values)
        loss_error = _check_step(programs["train"], tensors, values, 1)
        _check_evaluation(module, spec, programs, values.values)
        if "stats" in programs:
            _check_statistics(module, spec, programs["stats"], values.values)
        if PROBE in programs:
            _check_probe(module, spec, programs[PROBE], values.values)
        return Parity(
            max_grad_rel_err=gradients.error,
            torch_fp32_rel_err=gradients.own,
            loss_rel_err=loss_error,
            tolerance=gradients.tolerance,
            steps=STEPS,
        )

    parity = agreeing_or_noisy(reference, 1, whole)
    agreeing_or_noisy(reference, STEPS, lambda values: _check_step(programs["train"], tensors, values, STEPS))
    return parity


def self_test_losses(
    spec: StepSpec, model: Openable, tensors: Iterable[TensorSpec], *, seed: int, steps: int
) -> tuple[float, ...]:
    """Losses of the first steps of a ``train`` graph on the self-test's formula values (label mask all ones)."""
    session, feeds, losses = _opened(model), gate_values(spec, tensors, seed=seed, masked=False), []
    for _ in range(steps):
        outputs = session.run(feeds)
        losses.append(float(outputs["loss"]))
        feeds |= {n.removeprefix("next:"): v for n, v in outputs.items() if n.startswith("next:")}
    return tuple(losses)


def _check(what: str, worst: Worst) -> Worst:
    # "not <=" so that a NaN fails as well
    if not worst.error <= worst.tolerance:
        raise ParityError(
            f"{what}: '{worst.name}' is {worst.error:.2e} from torch float64, at most {worst.tolerance:.2e} expected "
            f"(torch float32 is {worst.own:.2e}); the graph is wrong, do not use it",
            hint="report the module; the exporter's table or the runtime is at fault",
        )
    return worst


def _opened(model: Openable, extra: Sequence[str] = ()) -> ProgramRun:
    if isinstance(model, MicroBatched):
        return model.opened()
    return GraphSession(model, extra) if isinstance(model, bytes) else model()


def _check_gradients(model: Openable, values: Reference) -> Worst:
    exact, single = (values.kept(trace.gradients) for trace in (values.exact, values.single))
    outputs = _opened(model, extra=[f"grad:{n}" for n in exact]).run(values.feeds(1))
    worst = worst_error({n: outputs[f"grad:{n}"] for n in exact}, exact, single)
    return _check("gradients of one step", values.beside_noise(worst))


def _check_step(model: Openable, tensors: Iterable[TensorSpec], values: Reference, step: int) -> float:
    """Every tensor after the step and its loss; gives the loss's own relative error."""
    session = _opened(model)
    written = {o.removeprefix("next:") for o in session.outputs if o.startswith("next:")}
    missing = {t.name for t in tensors if t.role in STATE_ROLES and t.role not in ("frozen", "buffer")} - written
    missing = {n for n in missing if n != LOSSES and not n.endswith(GRADIENT_SUM)}  # another program's, and no state's
    if missing:
        raise ParityError(f"train: the graph does not update {sorted(missing)[:3]}; the graph is wrong, do not use it")
    if step > 1:
        session.run(values.feeds(1))  # what a session keeps from one run (gradient buffers, bindings) must not show
    outputs = session.run(values.feeds(step))
    got = {n: outputs[f"next:{n}"] for n in written}
    states = [{n: trace.states[step - 1][n] for n in written} for trace in (values.exact, values.single)]
    _check(f"tensors after step {step}", values.beside_noise(worst_error(got, states[0], states[1])))
    losses = [float(outputs["loss"]), values.exact.losses[step - 1], values.single.losses[step - 1]]
    loss = worst_error(*({"loss": np.array(loss)} for loss in losses))
    return _check(f"loss of step {step}", loss).error


def _check_evaluation(
    module: nn.Module, spec: StepSpec, programs: Mapping[str, Openable], values: Mapping[str, np.ndarray]
) -> None:
    for name in ("eval", "eval_static"):
        if name not in programs:
            continue
        is_static = name == "eval_static"
        evaluation_spec, part = (_running(spec), with_statistics(module)) if is_static else (spec, module)
        results = [evaluated(part, evaluation_spec, values, d) for d in (torch.float64, torch.float32)]
        named = [{"loss": np.array(loss), "logits": logits} for loss, logits in results]
        outputs = _opened(programs[name]).run(values)
        got = {n: outputs[n] for n in ("loss", "logits")}
        _check(f"program {name}", worst_error(got, named[0], named[1]))
        correct = int((outputs["logits"].argmax(1) == values[TARGET]).sum())
        if int(outputs["correct"]) != correct:
            raise ParityError(
                f"program {name}: it counts {int(outputs['correct'])} correct, its own logits give {correct}"
            )


def _check_statistics(module: nn.Module, spec: StepSpec, model: Openable, values: Mapping[str, np.ndarray]) -> None:
    outputs = _opened(model).run(values)
    references = []
    for dtype in (torch.float64, torch.float32):
        prepared = module_with(with_statistics(prepared_module(module, spec)), values).to(dtype).train()
        for norm in batch_norms(prepared).values():
            norm.train()
            norm.momentum = float(values[STATS_MOMENTUM])
        x = torch.from_numpy(np.array(values[INPUT]))
        with torch.no_grad():
            prepared(x.to(dtype) if x.is_floating_point() else x)
        buffers = {n: b.double().numpy() for n, b in prepared.named_buffers()}
        references.append({n: buffers[n] for n in (o.removeprefix("next:") for o in outputs)})
    got = {name.removeprefix("next:"): value for name, value in outputs.items()}
    _check("program stats", worst_error(got, references[0], references[1]))


def _check_probe(module: nn.Module, spec: StepSpec, model: Openable, values: Mapping[str, np.ndarray]) -> None:
    """The losses of the first run, and that a second one leaves them."""
    session = _opened(model)
    got = session.run(values)[f"next:{LOSSES}"]
    exact, single = (reference_losses(module, spec, values, d) for d in (torch.float64, torch.float32))
    _check("program train_probe", worst_error({LOSSES: got}, {LOSSES: exact}, {LOSSES: single}))
    if not np.array_equal(session.run({**values, LOSSES: got})[f"next:{LOSSES}"], got):
        raise ParityError("program train_probe: a second run changes the losses; the graph is wrong, do not use it")


def _running(spec: StepSpec) -> StepSpec:
    return msgspec.structs.replace(spec, norm="running", frozen_norm="static")

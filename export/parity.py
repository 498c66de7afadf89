"""The parity gate: every exported program against torch float64, before anybody may use it.

The first step of the shipped ``train`` graph gives the loss, every gradient (values named ``grad:<parameter>``, made
outputs for this run only) and every updated tensor; then the second and the third do, each from the state that torch
has by then, so that slots are filled, in a session that has taken a step already, so that what it keeps shows. The
tolerance is ten times what torch float32 itself loses against float64 in the same step. Steps that go on from their own
state are the self-test's (:mod:`export.self_test`).
On which values, and what may disagree by chance: :mod:`export.agreement`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
import numpy as np
import torch
from torch import nn

from edge.contracts.errors import ParityError
from edge.contracts.manifest import Parity
from edge.contracts.tensors import FEATURES, GRADIENT_SUM, STATE_ROLES, TensorSpec
from export.agreement import Reference, References, agreeing
from export.draws import DRAW
from export.features.run import FeatureRun, FromFeatures, check_alone
from export.gate_values import SETTINGS, gate_values
from export.graph_session import GraphSession
from export.loss_probe import LOSSES, reference_losses
from export.loss_probe import PROGRAM as PROBE
from export.micro_batch_run import MicroBatched, ProgramRun
from export.norm_statistics import reference_statistics
from export.prepared_module import with_statistics
from export.program_inputs import TARGET
from export.reference import evaluated
from export.rounding_check import check_rounding
from export.tensor_error import FACTOR, FLOOR, Disagreement, Worst, relative_errors, vanishing, worst_error
from export.training_step import StepSpec, Variant
from export.variants import draw_suffix, narrowed_specs, put_back, variant_module, variant_sizes, variant_spec

STEPS = 3
"""Steps compared."""


Openable = bytes | MicroBatched | FromFeatures | Callable[[], ProgramRun]
"""A program as the gate takes it: an ONNX model's bytes, several of them, or what opens another format's."""


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
        wide |= {n + draw_suffix(self._variant): v for n, v in feeds.items() if DRAW in n}
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
    suffix = draw_suffix(variant)
    state = [_renamed(t, t.name.removesuffix(suffix)) for t in state if t.role != "draw" or t.name.endswith(suffix)]
    whole = gate_values(spec, tensors)
    gradients = [f"grad:{n}" for n, _ in part.named_parameters() if n not in spec.frozen]
    return _checked(
        part,
        part_spec,
        {"train": lambda: _PartRun(_opened(program, gradients), variant, whole)},
        narrowed_specs(state, variant),
    )


def _renamed(spec: TensorSpec, name: str) -> TensorSpec:
    return msgspec.structs.replace(spec, name=name)


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
    references = References(lambda setting, seed: Reference(module, spec, tensors, seed, setting))

    def whole(values: Reference) -> Parity:
        exact, single = (values.kept(trace.gradients) for trace in (values.exact, values.single))
        session = _opened(programs["train"], extra=[f"grad:{n}" for n in exact])
        outputs = session.run(values.feeds(1))
        got = {n: outputs[f"grad:{n}"] for n in exact}
        check_worst("gradients of one step", worst_error(got, exact, single, values.noise), values.about)
        named = exact.keys() - vanishing(exact)
        errors = (relative_errors(g, exact) for g in (got, single))
        error, own = (max(of[name] for name in named) for of in errors)
        if spec.kept_activations:
            check_rounding(module, spec, values.values, got)
        loss_error = _check_step(session, outputs, tensors, values, 1)
        _check_evaluation(module, spec, programs, values.values)
        if "stats" in programs:
            _check_statistics(module, spec, programs["stats"], values.values)
        if FEATURES in programs:
            check_alone(_opened(programs[FEATURES]), values.values, spec.batch // spec.micro_batches)
        if PROBE in programs:
            _check_probe(module, spec, programs[PROBE], values.values)
        return Parity(
            max_grad_rel_err=error,
            torch_fp32_rel_err=own,
            loss_rel_err=loss_error,
            tolerance=FACTOR * max(own, values.noise, FLOOR),
            steps=STEPS,
        )

    def later_step(values: Reference, step: int) -> None:
        session = sessions[0] if sessions else _opened(programs["train"])
        if not sessions:
            sessions.append(session)
            session.run(values.feeds(1))  # what it keeps from one run (gradient buffers, bindings) must not show
        _check_step(session, session.run(values.feeds(step)), tensors, values, step)

    sessions: list[ProgramRun] = []
    parity, setting = agreeing(references, 1, whole)
    for step in range(2, STEPS + 1):
        agreeing(references, step, partial(later_step, step=step), SETTINGS[SETTINGS.index(setting) :])
    return parity


def self_test_losses(model: Openable, values: Mapping[str, np.ndarray], *, steps: int) -> tuple[float, ...]:
    """Losses of the first steps of a ``train`` graph from ``values``, each from the state that the last one left."""
    session, feeds, losses = _opened(model), dict(values), []
    for _ in range(steps):
        outputs = session.run(feeds)
        losses.append(float(outputs["loss"]))
        feeds |= {n.removeprefix("next:"): v for n, v in outputs.items() if n.startswith("next:")}
    return tuple(losses)


def check_worst(what: str, worst: Worst, about: str = "") -> Worst:
    """Check that the worst tensor of a group is off by no more than it may be; gives it back.

    Raises:
        Disagreement: it is; says so of ``what``.
    """
    # "not <=" so that a NaN fails as well
    if not worst.error <= worst.tolerance:
        on = f" on the gate's values ({about})" if about else ""
        raise Disagreement(
            f"{what}: '{worst.name}' is {worst.error:.2e} from torch float64{on}, where torch float32 is at most "
            f"{worst.own:.2e} off; {worst.tolerance:.2e} was allowed; the graph is wrong, do not use it",
            error=worst.error,
            hint="report the module; the exporter's table or the runtime is at fault",
        )
    return worst


def _opened(model: Openable, extra: Sequence[str] = ()) -> ProgramRun:
    if isinstance(model, FromFeatures):
        return FeatureRun(_opened(model.features), _opened(model.step, extra), model.most)
    if isinstance(model, MicroBatched):
        return model.opened()
    return GraphSession(model, extra) if isinstance(model, bytes) else model()


def _check_step(
    session: ProgramRun, outputs: Mapping[str, np.ndarray], tensors: Iterable[TensorSpec], values: Reference, step: int
) -> float:
    """What a step of ``session`` gave: every tensor it writes, and its loss; gives the loss's own relative error."""
    values.reach(step)
    written = {o.removeprefix("next:") for o in session.outputs if o.startswith("next:")}
    missing = {t.name for t in tensors if t.role in STATE_ROLES and t.role not in ("frozen", "buffer")} - written
    missing = {n for n in missing if n != LOSSES and not n.endswith(GRADIENT_SUM)}  # another program's, and no state's
    if missing:
        raise ParityError(f"train: the graph does not update {sorted(missing)[:3]}; the graph is wrong, do not use it")
    before = values.feeds(step)
    traces = ({n: outputs[f"next:{n}"] for n in written}, values.exact.states[step - 1], values.single.states[step - 1])
    roles = {t.name: t.role for t in tensors}
    for role in sorted({roles[n] for n in written}):
        names = [n for n in sorted(written) if roles[n] == role]
        moved = [_moves({n: trace[n] for n in names}, before) for trace in traces]
        check_worst(
            f"what step {step} does to each {role}",
            worst_error(moved[0], moved[1], moved[2], values.noise),
            values.about,
        )
    losses = [float(outputs["loss"]), values.exact.losses[step - 1], values.single.losses[step - 1]]
    exact, single = ({"loss": np.array(loss)} for loss in losses[1:])
    return check_worst(
        f"loss of step {step}", worst_error({"loss": np.array(losses[0])}, exact, single, values.noise)
    ).error


def _moves(after: Mapping[str, np.ndarray], before: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """How far each tensor moved: of a large value a small step would not show. One of a wrong shape stays as it is."""
    alike = {n for n, value in after.items() if value.shape == before[n].shape}
    return {n: value - before[n].astype(np.float64) if n in alike else value for n, value in after.items()}


def _check_evaluation(
    module: nn.Module, spec: StepSpec, programs: Mapping[str, Openable], values: Mapping[str, np.ndarray]
) -> None:
    for name in ("eval", "eval_static"):
        if name not in programs:
            continue
        is_static = name == "eval_static"
        evaluation_spec, part = (_running(spec), with_statistics(module)) if is_static else (spec, module)
        exact, single = (evaluated(part, evaluation_spec, values, d) for d in (torch.float64, torch.float32))
        outputs = _opened(programs[name]).run(values)
        check_worst(f"program {name}", worst_error({n: outputs[n] for n in exact}, exact, single))
        if "correct" not in outputs:
            continue
        correct = int((outputs["logits"].argmax(1) == values[TARGET]).sum())
        if int(outputs["correct"]) != correct:
            raise ParityError(
                f"program {name}: it counts {int(outputs['correct'])} correct, its own logits give {correct}"
            )


def _check_statistics(module: nn.Module, spec: StepSpec, model: Openable, values: Mapping[str, np.ndarray]) -> None:
    outputs = _opened(model).run(values)
    exact, single = (reference_statistics(module, spec, values, d) for d in (torch.float64, torch.float32))
    got = {name.removeprefix("next:"): value for name, value in outputs.items()}
    check_worst("program stats", worst_error(got, {n: exact[n] for n in got}, {n: single[n] for n in got}))


def _check_probe(module: nn.Module, spec: StepSpec, model: Openable, values: Mapping[str, np.ndarray]) -> None:
    """The losses of the first run, and that a second one leaves them."""
    session = _opened(model)
    got = session.run(values)[f"next:{LOSSES}"]
    exact, single = (reference_losses(module, spec, values, d) for d in (torch.float64, torch.float32))
    check_worst("program train_probe", worst_error({LOSSES: got}, {LOSSES: exact}, {LOSSES: single}))
    if not np.array_equal(session.run({**values, LOSSES: got})[f"next:{LOSSES}"], got):
        raise ParityError("program train_probe: a second run changes the losses; the graph is wrong, do not use it")


def _running(spec: StepSpec) -> StepSpec:
    return msgspec.structs.replace(spec, norm="running", frozen_norm="static")

"""The self-test an artifact carries: the losses of its first steps on formula values that every kernel computes alike.

Here every step goes on from what the last one left, so a rounding may grow: a rectifier whose input is so close to 0
that two roundings disagree on its sign changes every later step, and a network with batch norms over few values
amplifies any difference (measured: torch float32 0.1 from float64 in the third loss). So torch looks for values, step
sizes and a batch on which float32 stays with float64 whichever way it rounds, and a run is compared as far as it does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from edge.contracts.errors import ParityError
from edge.contracts.manifest import SelfTest
from export.agreement import PATIENCE, SEEDS
from export.gate_values import ORDINARY, SETTINGS, Setting, gate_values, self_test_on
from export.parity import one_thread
from export.reference import ReferenceStep, Trace
from export.tensor_error import FACTOR

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from export.formats import Format
    from export.training_step import StepSpec
    from export.written_programs import WrittenPrograms

STEPS = 3
DIVERGED = 100.0
"""Times the first loss: beyond it training diverges on these values, and a step tells nothing of a kernel."""
CALM = 1e-5
"""Relative difference of losses from torch float64 up to which nothing has flipped or grown."""
CHAOTIC = 1e-3
"""Difference after which a smaller step size is not tried on the same values: the network is chaotic there."""
LEAST_TOLERANCE = 1e-4
"""Relative, per loss: other processors have other kernels than those whose spread is measured here."""
UNMEASURED_TOLERANCE = 1e-3
"""Of artifacts whose training programs are parts of a module, for which there is no one reference."""
TELLING = 10.0
"""Times the tolerance that the losses have to move, or a step that is left out would not show."""


@dataclass(frozen=True)
class _Run:
    """Torch's losses from one set of values.

    Attributes:
        exact: float64's, as far as float32 stays with them; at least one where the first is a number.
        spread: the largest relative difference of float32's, however it rounds.
    """

    setting: Setting
    seed: int
    exact: tuple[float, ...]
    spread: float

    @property
    def tolerance(self) -> float:
        return max(LEAST_TOLERANCE, FACTOR * self.spread)

    @property
    def is_telling(self) -> bool:
        return _distance(self.exact[1:], (self.exact[0],) * (len(self.exact) - 1)) > TELLING * self.tolerance

    @property
    def worth(self) -> tuple[int, bool, float]:
        return len(self.exact), self.is_telling, -self.spread


def self_test_of(
    module: nn.Module, spec: StepSpec, exporter: Format, written: WrittenPrograms, *, calm: bool = True
) -> SelfTest:
    """Formula, seed, step size and losses for the manifest.

    Args:
        calm: whether one step of torch float32 is with float64's on ordinary values; otherwise calmer ones come first.

    Raises:
        ParityError: on three sets of values the steps leave torch's where torch float32 does not.
    """
    if spec.variants:  # the gate compares each training program with its own part of the module
        values = gate_values(spec, written.tensors, seed=SEEDS[0], masked=False)
        found = exporter.self_test_losses(spec, written.files, written.tensors, values, steps=STEPS)
        kept = _finite_steps(found)
        if kept:
            return self_test_on(spec, SEEDS[0], ORDINARY, found[:kept], UNMEASURED_TOLERANCE)
    failures: list[ParityError] = []
    passed_over: list[_Run] = []
    for run in _runs(module, spec, written, SETTINGS if calm else (*SETTINGS[1:], ORDINARY)):
        if len(run.exact) < STEPS or not run.is_telling:
            passed_over.append(run)
            continue
        try:
            return _held_to(run, spec, exporter, written)
        except ParityError as error:
            failures.append(error)
            if len(failures) == PATIENCE:
                break
    if failures:
        raise failures[0]
    if not passed_over:
        raise ParityError(
            f"the first loss is infinite or no number, in torch float64 too, on {len(SETTINGS) * 2} sets of values",
            hint="the module overflows on inputs and weights of ordinary size; scale them inside it",
        )
    return _held_to(max(passed_over, key=lambda run: run.worth), spec, exporter, written)


def _runs(module: nn.Module, spec: StepSpec, written: WrittenPrograms, choice: Sequence[Setting]) -> Iterator[_Run]:
    """On the settings of ``choice``, each at its step size and at a tenth of it; then on other seeds."""
    settings = [s for setting in choice for s in (setting, replace(setting, pace=setting.pace / 10))]
    for seed in SEEDS[:2]:
        chaotic: set[tuple[float, float]] = set()
        for setting in settings:
            if (setting.batch, setting.bias) in chaotic:
                continue
            values = gate_values(spec, written.tensors, seed=seed, masked=False, setting=setting)
            with one_thread():
                exact, spread, lost = _losses(module, spec, values)
            if lost > CHAOTIC:
                chaotic.add((setting.batch, setting.bias))
            if exact:
                yield _Run(setting, seed, exact, spread)


def _losses(
    module: nn.Module, spec: StepSpec, values: Mapping[str, np.ndarray]
) -> tuple[tuple[float, ...], float, float]:
    """Float64's losses as far as float32 stays with them (none where the first is none), how far it is from those, and
    from the one after them.

    Float32 runs from the values and from their neighbours, which stands for other kernels: each sums in its own order.
    """
    inputs = ((values, torch.float64), (values, torch.float32), (_neighbours(values), torch.float32))
    steps = [ReferenceStep(module, spec, v, dtype) for v, dtype in inputs]
    traces = [Trace([], {}, []) for _ in steps]
    exact, spread = tuple[float, ...](), 0.0
    while len(exact) < STEPS:
        true = steps[0].run(1, traces[0], states=False).losses[-1]
        if _finite_steps((*exact, true)) <= len(exact):
            break
        for step, trace in zip(steps[1:], traces[1:], strict=True):
            off = _distance((step.run(1, trace, states=False).losses[-1],), (true,))
            if exact and off > CALM:
                return exact, spread, off
            spread = max(spread, off)
        exact = (*exact, true)
    return exact, spread, 0.0


def _neighbours(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``values`` with every floating number moved to the next one in float32, up and down in turn; scalars stay."""
    moved = dict(values)
    for name, value in values.items():
        if value.ndim and value.dtype == np.float32 and not name.endswith("#mask"):
            towards = np.full(value.size, np.inf, np.float32)
            towards[1::2] = -np.inf
            moved[name] = np.where(value == 0, value, np.nextafter(value, towards.reshape(value.shape)))
    return moved


def _held_to(run: _Run, spec: StepSpec, exporter: Format, written: WrittenPrograms) -> SelfTest:
    """The self-test of a run in which the graph's losses are torch's.

    Raises:
        ParityError: they are not.
    """
    values = gate_values(spec, written.tensors, seed=run.seed, masked=False, setting=run.setting)
    steps = len(run.exact)
    found = exporter.self_test_losses(spec, written.files, written.tensors, values, steps=steps)
    error = _distance(found, run.exact)
    if not error <= run.tolerance:
        raise ParityError(
            f"losses of {steps} steps in a row: {error:.1e} from torch float64's, where torch float32's are at most "
            f"{run.spread:.1e} off; {run.tolerance:.0e} was allowed; the graph is wrong, do not use it",
            hint="report the module; the exporter's table or the runtime is at fault",
        )
    spread = max(run.spread, error)
    return self_test_on(spec, run.seed, run.setting, found, max(LEAST_TOLERANCE, FACTOR * spread))


def _finite_steps(losses: tuple[float, ...]) -> int:
    """Steps before training diverges: a module without norms may, on such values, at the test's learning rate."""
    if not losses or not math.isfinite(losses[0]):
        return 0
    limit = DIVERGED * max(abs(losses[0]), 1.0)
    return next((step for step, loss in enumerate(losses) if not abs(loss) <= limit), len(losses))


def _distance(losses: tuple[float, ...], exact: tuple[float, ...]) -> float:
    """Largest difference relative to each exact loss; infinite where one is no number."""
    if not all(map(math.isfinite, losses)):
        return math.inf
    return max((abs(loss - true) / max(abs(true), 1e-6) for loss, true in zip(losses, exact, strict=True)), default=0.0)

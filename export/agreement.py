"""On which values a graph and torch are compared, and how often a graph may disagree before it is refused.

A comparison tells a wrong graph from another rounding only where torch float32 itself stays close to float64. So torch
chooses the values, before the graph is looked at: the most ordinary setting (:data:`export.gate_values.SETTINGS`) on
which float32 is calm, and in it those seeds on which it is. There a graph is refused when it disagrees on three sets of
values, not on one: a ReLU input so close to 0 that two roundings disagree on its sign moves a gradient by 1e-2, in the
graph's run as well as in torch's, and by more before a batch norm over few values. If every disagreement may be that,
the next calmer setting decides, but not the calmest, in which next to no rectifier is 0. Every step compared starts
from the same values, so that what one such sign does to a step is not in the next.

Networks whose gradients cancel (layers of one channel under a batch norm) are so ill-conditioned that torch float32 is
off in every setting, now ten times more, now ten times less; there the tolerance is ten times its median error over the
values of its best setting.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import nn

from edge.contracts.errors import ParityError
from edge.contracts.tensors import TensorSpec
from export.forms.kept_activations import NARROWING_NOISE
from export.gate_values import ORDINARY, SETTINGS, Setting, gate_batch, gate_values
from export.reference import ReferenceStep
from export.tensor_error import Disagreement, relative_errors, vanishing
from export.training_step import StepSpec

SEEDS = (1, 2, 3, 4, 5, 6)
CLEAN = 1e-4
CLEAN_ENOUGH = 1e-3
"""The same in the calmer settings, where what is left is rounding: gradients that are 0 but for it."""
LOOKS = 2
"""Seeds of a setting on which torch float32 may be further off than that before a calmer setting is looked at."""
HOPELESS = 1e-2
"""Error of torch float32 after which no other seed of the setting is looked at: that is more than one such sign."""
UNDOUBTED = 0.2
"""A graph that is further off than this is refused at once; up to it the next calmer setting decides. Batch norms over
four values make 8e-2 of one such sign (measured, resnest14d)."""
PATIENCE = 3
"""Values on which a graph may disagree before it is refused: a wrong graph disagrees on all of them."""

Result = TypeVar("Result")


class Candidate(Protocol):
    """A set of values to compare on.

    Attributes:
        noise: error of torch float32 that is usual in the steps compared, where these values may have less by luck.
    """

    noise: float

    def own_error(self, step: int) -> float:
        """How far torch float32 is from float64 in this step."""


Values = TypeVar("Values", bound=Candidate)


class Reference:
    """One set of values, and what torch makes of them in float64 and in float32, each step from float32's values.

    Attributes:
        noise: as in :class:`Candidate`.
        about: the values in words, for messages.
    """

    def __init__(
        self,
        module: nn.Module,
        spec: StepSpec,
        tensors: Iterable[TensorSpec],
        seed: int,
        setting: Setting = SETTINGS[0],
    ) -> None:
        self._spec = spec
        self.noise = NARROWING_NOISE if spec.kept_activations else 0.0
        self.about = f"seed {seed}, batch {gate_batch(spec, setting)}, bias {setting.bias:g}, gain {setting.gain:g}"
        self.values = gate_values(spec, tensors, seed=seed, setting=setting)
        self._steps = [ReferenceStep(module, spec, self.values, d) for d in (torch.float64, torch.float32)]
        self.exact, self.single = (step.run(1, states=False) for step in self._steps)

    def own_error(self, step: int) -> float:
        """Float32's error: in the first step's gradients, or in all tensors after a later one."""
        if step == 1:
            errors = relative_errors(self.single.gradients, self.exact.gradients)
            return max(errors[name] for name in errors.keys() - vanishing(self.exact.gradients))
        self.reach(step)
        return max(relative_errors(self.single.states[step - 1], self.exact.states[step - 1]).values())

    def reach(self, step: int) -> None:
        """Run torch's steps up to ``step``, whose state is then in ``exact`` and ``single``."""
        exact, single = self._steps
        if not self.exact.states:
            self.exact.states.append(exact.state())
            self.single.states.append(single.state())
        while len(self.exact.losses) < step:
            single.start_from(exact)
            exact.start_from(exact)
            exact.run(1, self.exact), single.run(1, self.single)

    def kept(self, gradients: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """``gradients``, of sparse weights at the entries that are kept."""
        sparse = self._spec.capacities
        return {n: g * self.values[f"{n}#mask"] if n in sparse else g for n, g in gradients.items()}

    def feeds(self, step: int) -> dict[str, np.ndarray]:
        """Every value that this step starts from."""
        if step == 1:
            return dict(self.values)
        self.reach(step - 1)
        before = self.exact.states[step - 2]
        return {n: before[n].astype(v.dtype).reshape(v.shape) if n in before else v for n, v in self.values.items()}


class References(Generic[Values]):
    """Sets of values by setting and seed, made when they are asked for.

    Two float types of a model, its slots and what three steps made of them take memory: of values on which torch
    float32 is not calm nothing is kept but the error.

    Args:
        make: the values of a setting and seed.
    """

    def __init__(self, make: Callable[[Setting, int], Values]) -> None:
        self._make = make
        self._kept: dict[tuple[Setting, int], Values] = {}
        self._errors: dict[tuple[Setting, int, int], float] = {}

    def values(self, setting: Setting, seed: int) -> Values:
        """The values, made again where they were not kept."""
        if (setting, seed) not in self._kept:
            self._kept[setting, seed] = self._make(setting, seed)
        return self._kept[setting, seed]

    def own_error(self, setting: Setting, seed: int, step: int) -> float:
        """Torch float32's error in the step; infinite where a value is no number."""
        key = (setting, seed, step)
        if key not in self._errors:
            own = self.values(setting, seed).own_error(step)
            self._errors[key] = own if math.isfinite(own) else math.inf
        if self._errors[key] > limit(setting):
            self._kept.pop((setting, seed), None)
        return self._errors[key]


def limit(setting: Setting) -> float:
    """Error of torch float32 up to which values of ``setting`` are compared on."""
    return CLEAN if setting == ORDINARY else CLEAN_ENOUGH


def agreeing(
    references: References[Values],
    step: int,
    compare: Callable[[Values], Result],
    settings: Iterable[Setting] = SETTINGS,
) -> tuple[Result, Setting]:
    """What ``compare`` gives on the first values on which the graph agrees, and their setting.

    Raises:
        Disagreement: the first of three.
        ParityError: torch float32 overflows in every setting.
    """
    noisy: list[tuple[float, Setting, int]] = []
    first: Disagreement | None = None
    for setting in settings:
        if first is not None and setting == SETTINGS[-1]:
            break  # so calm that it might hide a fault
        failures: list[Disagreement] = []
        is_calm = False
        for looked, seed in enumerate(SEEDS):
            own = references.own_error(setting, seed, step)
            if own > limit(setting):
                noisy.append((own, setting, seed))
                if not is_calm and (looked + 1 == LOOKS or own > HOPELESS):
                    break
                continue
            is_calm = True
            try:
                return compare(references.values(setting, seed)), setting
            except Disagreement as error:
                failures.append(error)
                if len(failures) == PATIENCE:
                    break
        first = first or (failures[0] if failures else None)
        if failures and (setting == SETTINGS[-1] or any(error.error > UNDOUBTED for error in failures)):
            raise failures[0]
    if first is not None:
        raise first
    return _agreeing_in_noise(references, noisy, compare)


def _agreeing_in_noise(
    references: References[Values], noisy: list[tuple[float, Setting, int]], compare: Callable[[Values], Result]
) -> tuple[Result, Setting]:
    """As :func:`agreeing` where no setting is calm: beside torch float32's usual error, in its best setting."""
    failures = []
    errors = {s: [own for own, setting, _ in noisy if setting == s] for _, s, _ in noisy}
    setting = min(errors, key=lambda s: statistics.median(errors[s]))
    usual = statistics.median(errors[setting])
    if not math.isfinite(usual):  # beside an infinite error every graph would do
        raise ParityError(
            "torch float32's own gradients or tensors are infinite or no numbers in every setting; "
            "the graph cannot be checked",
            hint="the module overflows on inputs and weights of ordinary size; scale them inside it",
        )
    for _, seed in sorted((own, seed) for own, s, seed in noisy if s == setting)[:PATIENCE]:
        values = references.values(setting, seed)
        before, values.noise = values.noise, max(values.noise, usual)
        try:
            return compare(values), setting
        except Disagreement as error:
            failures.append(error)
        finally:  # of these steps alone: the same values are asked for again, of steps that may be quiet
            values.noise = before
    raise failures[0]

"""What a step would take, told without exporting it: from a cut's counts, and from what steps exported so far took.

An export of a large model takes a minute, so a planner asks here first which levels and forms are worth one. Nothing
is decided by an estimate alone that lies within its tolerance of the limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.submodels.record import Cut, cut_digest
from coordinator.submodels.values import DeviceProgram
from edge.contracts.manifest import Cost
from export.forms.step_form import PLAIN, StepForm

WEIGHTS_HELD, ACTIVATIONS_HELD = 1.1, 0.75
"""Bytes that a manifest predicts per counted byte. Source: measured on the steps of
tests/coordinator/submodels/test_step_memory.py; an estimate is 0.7 to 1.1 times what an export states, 0.6 in
a browser, whose memory grows by leaps."""

RECOMPUTED_SHARE = 0.5
"""Of the activations that stay when the rest is computed again, until a step in that form was exported."""

NARROWED_SHARE = 0.6
"""Of the activations, in float16: half of those that wait, and whole ones of the layer that is being computed."""

TOLERANCE = 0.15
"""How far an estimate may be above what the manifest then says, where a step like it was exported before."""

OTHER_FORM_TOLERANCE, FIRST_TOLERANCE = 0.3, 0.4
"""The same where only steps in other forms were, or none for the runtime."""


@dataclass(frozen=True)
class CountedStep:
    """What can be counted of a level's step without exporting it.

    Attributes:
        state_bytes: parameters, slots and statistics, once.
        twice_bytes: what of the state and of the gradients is held once more, where a runtime does not write over it.
        trained_bytes: parameters that get a gradient, once.
        activation_bytes: results of operations that a gradient passes, at the batch.
        macs: of one forward pass of one example.
    """

    state_bytes: int
    twice_bytes: int
    trained_bytes: int
    activation_bytes: int
    macs: int

    def held_bytes(self, form: StepForm) -> float:
        """What a step in ``form`` should hold at once."""
        sums = self.trained_bytes if form.micro_batches > 1 else 0
        if self.twice_bytes:
            sums *= 2
        share = RECOMPUTED_SHARE if form.recompute else NARROWED_SHARE if form.keep else 1.0
        weights = WEIGHTS_HELD * (self.state_bytes + self.twice_bytes + self.trained_bytes + sums)
        return weights + ACTIVATIONS_HELD * share * self.activation_bytes / form.micro_batches


@dataclass(frozen=True)
class Estimate:
    """A free estimate of a manifest's ``predicted_peak_bytes``.

    Attributes:
        least_bytes: below what the manifest will say, with all likelihood.
        is_exact: both are what the manifest will say.
    """

    growth_bytes: int
    least_bytes: int
    is_exact: bool = False


class Estimator:
    """Estimates for a run's steps; it learns from every exported one it is told of.

    Args:
        count: counts of a step on a runtime; None where they cannot be had.
        written: the cost of a step that is known without an export, by its form; None where it takes one.
    """

    def __init__(
        self,
        count: Callable[[Cut, DeviceProgram, str], CountedStep | None],
        written: Callable[[Cut, DeviceProgram, str, StepForm], Cost | None] = lambda *_: None,
    ) -> None:
        self._count, self._written = count, written
        self._known: dict[str, dict[tuple[str, StepForm], tuple[CountedStep | None, Cost]]] = {}

    def learn(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm, cost: Cost) -> None:
        """A step was exported."""
        known = self._known.setdefault(runtime, {})
        name = _name(cut, program)
        if (name, form) not in known:
            known[name, form] = (self._count(cut, program, runtime), cost)

    def estimate(self, cut: Cut, program: DeviceProgram, runtime: str, form: StepForm) -> Estimate | None:
        """Of a step that was not exported; None where nothing can be said.

        What its counts say, by as much more or less as they said of the exported step that is most like it.
        """
        if (cost := self._written(cut, program, runtime, form)) is not None:
            return Estimate(cost.predicted_peak_bytes, cost.predicted_peak_bytes, is_exact=True)
        here = self._count(cut, program, runtime)
        if here is None:
            return None
        held, factor, tolerance = here.held_bytes(form), 1.0, FIRST_TOLERANCE
        found = [
            (other != form, abs(math.log(counted.held_bytes(other) / held)), cost.predicted_peak_bytes, counted, other)
            for (_, other), (counted, cost) in self._known.get(runtime, {}).items()
            if counted is not None
        ]
        if found:
            is_other, distance, predicted, counted, like = min(found, key=lambda entry: entry[:3])
            # What one size was wrong by says less of another the farther away that is.
            factor = 1.0 + (predicted / counted.held_bytes(like) - 1.0) * math.exp(-distance)
            near = OTHER_FORM_TOLERANCE if is_other else TOLERANCE
            tolerance = FIRST_TOLERANCE - (FIRST_TOLERANCE - near) * math.exp(-distance)
        least = max(0.9 * here.state_bytes, held * factor * (1.0 - tolerance))
        return Estimate(round(held * factor), round(least))

    def plain_cost(
        self, cut: Cut, program: DeviceProgram, runtime: str, *, batch: int, plain: StepForm = PLAIN
    ) -> Cost | None:
        """The cost of the plain step as far as its time needs it: as exported, or estimated.

        Args:
            plain: the plain step, with a window or a base of its own.
        """
        known = self._known.get(runtime, {}).get((_name(cut, program), plain))
        if known is not None:
            return known[1]
        if (cost := self._written(cut, program, runtime, plain)) is not None:
            return cost
        counted, growth = self._count(cut, program, runtime), self.estimate(cut, program, runtime, PLAIN)
        if counted is None or growth is None:
            return None
        return Cost(
            parameters=counted.trained_bytes // 4,
            trained_parameters=counted.trained_bytes // 4,
            macs=counted.macs,
            state_bytes=counted.state_bytes,
            live_bytes=growth.growth_bytes,
            predicted_peak_bytes=growth.growth_bytes,
            batch=batch,
        )


def _name(cut: Cut, program: DeviceProgram) -> str:
    return cut_digest(cut) + repr(program)

"""The steps a planner may choose among, for one device and round: their costs, and what is known of them unasked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from coordinator.planning.artifacts import Artifacts
from coordinator.planning.estimate import Estimate
from coordinator.submodels.record import Cut
from coordinator.submodels.values import DeviceProgram, Level
from edge.contracts.manifest import Cost
from export.forms.step_form import PLAIN, StepForm


class PlannedSteps(Protocol):
    """What a placement asks about steps. Only :meth:`cost` may take long."""

    def cost(self, level: Level, runtime: str, form: StepForm) -> Cost:
        """Of the artifact, exported now if it was not before; raises ExportRefused or ParityError."""

    def key(self, level: Level, runtime: str, form: StepForm) -> str:
        """The artifact's export key."""

    def refused(self, level: Level, runtime: str, form: StepForm) -> str:
        """Why there can be no such step; empty when it can be tried."""

    def is_known(self, level: Level, runtime: str, form: StepForm) -> bool:
        """Whether :meth:`cost` answers at once."""

    def estimate(self, level: Level, runtime: str, form: StepForm) -> Estimate | None:
        """Of the artifact's predicted growth; None where nothing can be said."""

    def plain_cost(self, level: Level, runtime: str, form: StepForm) -> Cost | None:
        """Of the plain step on the model of ``form`` as far as its time needs it, estimated if it was not exported."""


class ArtifactSteps:
    """Steps as artifacts of one device in one round.

    Args:
        shape: a level's cut, values apart, and what its devices are asked to do.
    """

    def __init__(
        self, artifacts: Artifacts, shape: Callable[[Level], tuple[Cut, DeviceProgram]], *, batch: int
    ) -> None:
        self._artifacts, self._shape, self._batch = artifacts, shape, batch
        self._shapes: dict[Level, tuple[Cut, DeviceProgram]] = {}

    def _of(self, level: Level) -> tuple[Cut, DeviceProgram]:
        if level not in self._shapes:
            self._shapes[level] = self._shape(level)
        return self._shapes[level]

    def cost(self, level: Level, runtime: str, form: StepForm) -> Cost:
        """As :class:`PlannedSteps`."""
        return self._artifacts.get(*self._of(level), runtime, form).manifest.cost

    def key(self, level: Level, runtime: str, form: StepForm) -> str:
        """As :class:`PlannedSteps`."""
        return self._artifacts.key(*self._of(level), runtime, form)

    def refused(self, level: Level, runtime: str, form: StepForm) -> str:
        """As :class:`PlannedSteps`; a plain step is refused by its export alone."""
        return "" if form.of_step == PLAIN else self._artifacts.refused_form(*self._of(level), runtime, form)

    def is_known(self, level: Level, runtime: str, form: StepForm) -> bool:
        """As :class:`PlannedSteps`."""
        return self._artifacts.is_at_hand(*self._of(level), runtime, form)

    def estimate(self, level: Level, runtime: str, form: StepForm) -> Estimate | None:
        """As :class:`PlannedSteps`."""
        return self._artifacts.estimator.estimate(*self._of(level), runtime, form)

    def plain_cost(self, level: Level, runtime: str, form: StepForm) -> Cost | None:
        """As :class:`PlannedSteps`."""
        estimator = self._artifacts.estimator
        return estimator.plain_cost(*self._of(level), runtime, batch=self._batch, plain=form.of_model)

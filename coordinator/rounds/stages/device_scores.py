"""What devices report of the model that they were sent, on the share of their examples that they do not train on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.config.run_config import RunConfig
from coordinator.device_scores.distribution import KEY, DeviceScore, Measure, distribution, per_target
from coordinator.device_scores.held_out import EVAL
from coordinator.exporting.task_metric import task_measure
from coordinator.ledger.records import Round
from coordinator.rounds.federation import Federation, RoundStage
from coordinator.submodels.values import State


class DeviceScores(RoundStage):
    """In a run with ``[evaluation] devices``. The sums are in the ledger with the reports, and count as these do."""

    @classmethod
    def is_used(cls, config: RunConfig) -> bool:
        """Whether the run asks for it."""
        return config.evaluation.devices > 0

    def __init__(self) -> None:
        self._known: Measure | None = None

    def _measure(self, config: RunConfig) -> Measure:
        """What sums amount to in this run."""
        if self._known is None:
            self._known = task_measure(config) if config.task.name else per_target
        return self._known

    def metrics(self, federation: Federation, current: Round, program: str, state: State) -> Mapping[str, Any]:
        """The distribution over the devices of the round; ``model``: rounds that the scored model is of."""
        counted = federation.ledger.updates.counted(current.round, current.attempt)
        scores = [
            DeviceScore(update.assignment.device, update.assignment.level, evaluation)
            for update in counted
            if (evaluation := update.report.scores) is not None
        ]
        if not scores and program != EVAL:
            return {}
        return {
            KEY: {
                "model": min(current.round, federation.training_rounds),
                **distribution(scores, self._measure(federation.config)),
            }
        }

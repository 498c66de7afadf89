"""Updates of older models, moved to the one of today before they are summed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.config.run_config import RunConfig
from coordinator.ledger.records import Round
from coordinator.rounds.federation import Federation, RoundStage
from coordinator.rounds.staleness import rebased_updates, staleness_counts
from coordinator.submodels.values import State, Update


class LateUpdates(RoundStage):
    """In a run with ``[aggregation] mode = "buffered"``."""

    @classmethod
    def is_used(cls, config: RunConfig) -> bool:
        """Whether the run asks for it."""
        return config.aggregation.mode == "buffered"

    def updates(
        self, federation: Federation, state: State, current: Round, program: str, updates: Iterator[Update]
    ) -> Iterator[Update]:
        """Those of a training round as beside ``state``, weighted by their age."""
        if program != "train":
            return updates
        return rebased_updates(
            federation, state, current.round, federation.ledger.updates.counted(current.round, current.attempt), updates
        )

    def metrics(self, federation: Federation, current: Round, program: str, state: State) -> Mapping[str, Any]:
        """How many updates were so many versions old."""
        if program != "train":
            return {}
        counted = federation.ledger.updates.counted(current.round, current.attempt)
        return {"staleness": staleness_counts(current.round, counted)}

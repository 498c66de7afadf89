"""Calls what a program wants to know about a run: a round, a report, a commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from apportion.history import round_row
from coordinator.ledger.records import RecordedUpdate, Round
from coordinator.rounds.federation import Federation, RoundStage
from coordinator.submodels.values import State
from edge.contracts.report import TrainReport

OnRound = Callable[[Mapping[str, Any]], object]
OnReport = Callable[[TrainReport], object]
OnCommit = Callable[[int, Mapping[str, Any]], object]


class Callbacks(RoundStage):
    """A stage that only looks. What a callback raises ends the run, which can be resumed.

    Args:
        on_round: called after a round with its row, as in :attr:`apportion.History.rounds`.
        on_report: called once with every report of this process's rounds, before the round is committed.
        on_commit: called with the number of finished rounds and the new model's tensors by name, NumPy arrays that are
            not to be written to.
    """

    def __init__(
        self, on_round: OnRound | None = None, on_report: OnReport | None = None, on_commit: OnCommit | None = None
    ) -> None:
        self._on_round, self._on_report, self._on_commit = on_round, on_report, on_commit
        self._told: set[str] = set()

    def while_collecting(self, federation: Federation, current: Round) -> None:
        """Tell of the reports that came."""
        self._tell_reports(federation, current)

    def participants(self, federation: Federation, current: Round, reported: list[str]) -> list[str]:
        """All that reported."""
        self._tell_reports(federation, current)
        return reported

    def metrics(self, federation: Federation, current: Round, program: str, state: State) -> Mapping[str, Any]:
        """None of its own. Of buffered rounds, which are collected elsewhere, this is where reports are told."""
        if self._on_report is not None:
            self._tell(federation.ledger.updates.counted(current.round, current.attempt))
        return {}

    def committed(self, federation: Federation, state: State, entry: Mapping[str, Any]) -> None:
        """Tell of the round."""
        self._told.clear()
        if self._on_commit is not None:
            self._on_commit(state.round, dict(state.tensors))
        if self._on_round is not None:
            self._on_round(round_row(entry))

    def _tell_reports(self, federation: Federation, current: Round) -> None:
        if self._on_report is not None:
            self._tell(federation.ledger.updates.of_attempt(current.round, current.attempt))

    def _tell(self, updates: Sequence[RecordedUpdate]) -> None:
        for update in updates:
            if self._on_report is not None and update.assignment.assignment_id not in self._told:
                self._told.add(update.assignment.assignment_id)
                self._on_report(update.report)


def watchers_of(
    on_round: OnRound | None, on_report: OnReport | None, on_commit: OnCommit | None
) -> tuple[RoundStage, ...]:
    """The stage that calls them; none where nothing is to be called."""
    is_asked = any(callback is not None for callback in (on_round, on_report, on_commit))
    return (Callbacks(on_round, on_report, on_commit),) if is_asked else ()

"""A whole run: every round that the ledger does not hold yet, one after the other, then statistics and scores."""

from __future__ import annotations

from coordinator.device_scores.held_out import EVAL
from coordinator.rounds.aggregation import renew
from coordinator.rounds.batch_norm_statistics import needs_statistics
from coordinator.rounds.buffered import BufferedRounds
from coordinator.rounds.control import obey_between_rounds
from coordinator.rounds.federation import Federation
from coordinator.rounds.final_scores import needs_scores, scored_state
from coordinator.rounds.recovery import committed_state
from coordinator.rounds.round import run_round
from coordinator.submodels.values import State


def run_rounds(federation: Federation, state: State | None = None) -> State:
    """Run every round after ``state``, which the ledger has where none is given, then those of statistics and scores.

    Returns:
        The final state.
    """
    federation.stages.begun(federation)
    state = restore(federation) if state is None else state
    federation.stages.restored(federation, state)
    buffered = BufferedRounds(federation) if federation.config.aggregation.mode == "buffered" else None
    while state.round < federation.training_rounds:
        obey_between_rounds(federation)
        state = buffered.run(state) if buffered else run_round(federation, state, program="train")
    if buffered:
        buffered.finish()
    while needs_statistics(federation, state):
        obey_between_rounds(federation)
        state = run_round(federation, state, program="stats")
    while needs_scores(federation):
        obey_between_rounds(federation)
        run_round(federation, scored_state(federation, state), program=EVAL)
    federation.stages.ended(federation)
    return state


def restore(federation: Federation) -> State:
    """The state after the last committed round, or the method's own initial state."""
    last = federation.ledger.rounds.last_committed()
    if last is None:
        return federation.method.init()
    return committed_state(federation, last, lambda *before: renew(federation, *before))

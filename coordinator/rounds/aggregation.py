"""From a round's updates to the next state: the method's sum, and its own work after it."""

from __future__ import annotations

from dataclasses import replace

from coordinator.device_scores.held_out import EVAL
from coordinator.ledger.records import Round
from coordinator.rounds.batch_norm_statistics import state_with_statistics
from coordinator.rounds.faulty_updates import Watched, set_aside
from coordinator.rounds.federation import Federation
from coordinator.rounds.final_scores import DEPLOYMENT
from coordinator.rounds.participants import rule_of, updates_of
from coordinator.rounds.stage_tensors import apart, joined
from coordinator.submodels.values import NotFinite, State
from edge.contracts.errors import UpdateRejected


def renew(federation: Federation, state: State, current: Round, program: str) -> State:
    """The state that the updates of ``current`` make of ``state``; the same bits however often."""
    if program in (EVAL, DEPLOYMENT):
        return state
    own, kept = apart(state)
    new_state = aggregate(federation, state, current, program)
    if program == "train":
        new_state = refresh(federation, federation.stages.aggregated(federation, own, new_state, kept))
    return joined(new_state, kept)


def aggregate(federation: Federation, state: State, current: Round, program: str) -> State:
    """Sum the updates that count, one at a time from disk, in device-id order; without those that stop the sum.

    Raises:
        AttemptGivenUp: too few are left without them.
    """
    federation.on_point("aggregating")
    own, _ = apart(state)
    while True:
        recorded = federation.ledger.updates.counted(current.round, current.attempt)
        given = Watched(updates_of(federation, recorded))
        try:
            updates = federation.stages.updates(federation, state, current, program, given)
            if program == "stats":
                return state_with_statistics(federation.method, own, updates)
            return replace(federation.method.aggregate(own, updates, rule_of(federation)), round=state.round + 1)
        except (UpdateRejected, NotFinite) as error:
            set_aside(federation, current, recorded, given.in_hand, error)


def refresh(federation: Federation, state: State) -> State:
    """The method's own work after aggregation: a decomposition, a new mask, the next step, or nothing."""
    return federation.method.refresh(state)

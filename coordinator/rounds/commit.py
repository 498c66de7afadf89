"""The end of a round: its state evaluated and stored, the round committed, and what only earlier rounds used let go."""

from __future__ import annotations

import time

from coordinator.ledger.records import Round
from coordinator.methods.method import ObservesScores
from coordinator.rounds.federation import Federation
from coordinator.rounds.global_model import encode_state
from coordinator.rounds.metrics import describe_metrics, effective_ranks, forms_of_layers, round_metrics
from coordinator.rounds.stage_tensors import observed
from coordinator.submodels.values import State


def commit(federation: Federation, current: Round, state: State, program: str, started: float) -> State:
    """Evaluate, store the new state, mark the round committed, and let go of what only earlier rounds used."""
    ledger, rounds = federation.ledger, federation.config.federation.rounds
    updates = ledger.updates.counted(current.round, current.attempt)
    metrics = round_metrics(updates, wall_s=time.monotonic() - started)
    metrics |= federation.stages.metrics(federation, current, program, state)
    if forms := forms_of_layers(federation, updates):
        metrics["layer_forms"] = forms
    if program == "train":
        metrics |= effective_ranks(federation.method, state)
    every = federation.config.evaluation.every
    is_last = program != "train" or current.round + 1 >= rounds
    if is_last or (every and (current.round + 1) % every == 0):
        scores = federation.evaluate(state)
        metrics["evaluation"] = {label: s.values() for label, s in scores.items()}
        if program == "train" and isinstance(federation.method, ObservesScores):
            state = observed(federation.method, state, {label: s.accuracy for label, s in scores.items()})
    federation.stages.before_commit(federation)
    data = encode_state(state)
    digest = federation.blobs.put(data)
    ledger.blobs.add(digest, len(data))
    federation.on_point("before-commit")
    ledger.rounds.move(current.round, current.attempt, "committed", model_digest=digest, metrics=metrics)
    entry = {"round": current.round, "attempt": current.attempt, "program": program, **metrics}
    federation.progress.record("round", **entry)
    federation.progress.round_line(current.round, rounds, describe_metrics(metrics, program))
    federation.on_point("committed")
    federation.stages.committed(federation, state, entry)
    _let_go(federation, current.round)
    federation.on_point("released")
    return state


def _let_go(federation: Federation, round_index: int) -> None:
    """Delete what only rounds before ``round_index`` used: nothing that another coordinator has put or asked for since.

    This process may stand still anywhere here, lose its lease and wake up while the next one has begun its round.
    """
    ledger, blobs = federation.ledger, federation.blobs
    before = blobs.clock()
    with federation.devices.at_rest():  # an update with the bytes of a blob that is released now is sent again
        released = ledger.blobs.release(round_index)
        federation.on_point("releasing")
        again = ledger.blobs.sizes().keys() if federation.config.store.ledger else frozenset()
        for digest in released:
            if digest not in again:
                blobs.release(digest, before)
    ordered = ledger.assignments.with_ids(list(set(blobs.partials().values())))
    blobs.drop_partials({entry.assignment_id for entry in ordered if entry.state not in ("open", "accepted")})

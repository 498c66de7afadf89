"""The model of the last committed round: checked when it is read, and made again when its blob is damaged.

Until the next round commits, the model before it and the updates it was made of are still there; the same sum of them
has the same bits, and the digest in the ledger proves it. Where it has not, nothing else takes the model's place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from coordinator.ledger.records import Round
from coordinator.methods.method import ObservesScores
from coordinator.rounds.federation import Federation
from coordinator.rounds.final_scores import program_of
from coordinator.rounds.global_model import decode_state, encode_state
from coordinator.rounds.stage_tensors import observed
from coordinator.submodels.values import State
from edge.contracts.errors import ApportionError, ArtifactCorrupt

Again = Callable[[State, Round, str], State]
"""Aggregates a committed round once more: the state before it, the round, its program; the state after it."""


def committed_state(federation: Federation, last: Round, again: Again) -> State:
    """The state after ``last``, the last committed round.

    Raises:
        ArtifactCorrupt: its blob is damaged or gone, and it cannot be made again with the same bits.
    """
    try:
        federation.blobs.verify(last.model_digest)
        return _read(federation, last)
    except ArtifactCorrupt as error:
        found = error
    try:
        state = _made_again(federation, last, again)
        data = encode_state(state)
        if hashlib.sha256(data).hexdigest() != last.model_digest:
            raise ArtifactCorrupt("the sum of its updates has other bits than it had")
        federation.blobs.set_aside(last.model_digest)
        federation.blobs.put(data)
    except (ApportionError, OSError) as error:
        raise ArtifactCorrupt(
            f"the model after round {last.round + 1}: {found}; it could not be made again from the round before "
            f"({error}). Put blob {last.model_digest} back from a backup of {federation.blobs.root}; a finished run "
            "has its model in checkpoints/ too"
        ) from found
    federation.ledger.blobs.add(last.model_digest, len(data))
    federation.progress.say(
        f"the model after round {last.round + 1}: {found}; made again from the round before, with the same digest"
    )
    return state


def _read(federation: Federation, committed: Round) -> State:
    done = min(committed.round + 1, federation.training_rounds)
    return decode_state(federation.blobs.read(committed.model_digest), round_index=done)


def _made_again(federation: Federation, last: Round, again: Again) -> State:
    before = [r for r in federation.ledger.rounds.all() if r.state == "committed" and r.round < last.round]
    if before:
        federation.blobs.verify(before[-1].model_digest)
    state = _read(federation, before[-1]) if before else federation.method.init()
    program = program_of(federation, last)
    state = again(state, last, program)
    scores = last.metrics.get("evaluation")
    if program == "train" and scores and isinstance(federation.method, ObservesScores):
        state = observed(
            federation.method, state, {label: score.get("accuracy", float("nan")) for label, score in scores.items()}
        )
    return state

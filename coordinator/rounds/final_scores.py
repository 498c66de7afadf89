"""The round after the last one in which devices score the final model, each on the share that it never trained on.

It is a round as any other, in the ledger and resumable, of all devices that are here; its updates hold no tensors and
the model stays as it is. With ``[personal] fine-tune`` devices train the model further for themselves in it.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.device_scores.distribution import KEY
from coordinator.device_scores.held_out import EVAL
from coordinator.ledger.records import Round
from coordinator.rounds.federation import Federation
from coordinator.submodels.values import State
from edge.contracts.evaluation import ABILITY

DEPLOYMENT = "deployment"
"""Of a round in which devices install a release; in its metrics, what came of it."""


def needs_scores(federation: Federation) -> bool:
    """Whether devices are to score the final model; not where none of those that are here can."""
    if not federation.config.evaluation.devices:
        return False
    round_index = federation.devices.scoring_round(federation)
    if round_index is None or federation.ledger.rounds.open() is not None:
        return round_index is not None
    here = federation.devices.gather(federation, round_index)
    if any(ABILITY in hello.abilities for hello in here):
        return True
    federation.progress.say(f"none of {len(here)} devices scores on a share of its own: there are no scores of theirs")
    return False


def scored_state(federation: Federation, state: State) -> State:
    """The final ``state`` as the beginning of the round that scores it."""
    round_index = federation.devices.scoring_round(federation)
    return state if round_index is None else replace(state, round=round_index)


def program_of(federation: Federation, committed: Round) -> str:
    """What devices ran in a committed round: ``train``, ``stats`` or ``eval``; ``deployment``: they ran nothing."""
    if committed.round < federation.training_rounds:
        return "train"
    if DEPLOYMENT in committed.metrics:
        return DEPLOYMENT
    return EVAL if KEY in committed.metrics else "stats"

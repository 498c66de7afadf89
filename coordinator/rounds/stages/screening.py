"""Who may take part, by what came of its last updates, and whose update is set aside before the sum."""

from __future__ import annotations

from coordinator.defences.reliability import may_take_part
from coordinator.defences.screening import screened
from coordinator.ledger.records import Round
from coordinator.rounds.federation import Federation, RoundStage
from coordinator.rounds.origin_weights import restore_weights
from coordinator.rounds.participants import origin_of, sent_tensors


class Screening(RoundStage):
    """Quarantine and bars; in every run, for an operator may set an update aside where ``[defences]`` does not."""

    def eligible(self, federation: Federation, devices: list[str], round_index: int) -> list[str]:
        """Those of ``devices`` that are not barred."""
        defences, say = federation.config.defences, federation.progress.say
        return may_take_part(federation.ledger, defences, devices, round_index, say=say)

    def participants(self, federation: Federation, current: Round, reported: list[str]) -> list[str]:
        """Those whose updates are not set aside; the ledger has the others in quarantine."""
        updates = federation.ledger.updates.of_attempt(current.round, current.attempt)
        restore_weights(federation, [u.assignment for u in updates if u.assignment.order])  # a simulation has none
        recorded = screened(
            federation.ledger,
            updates,
            federation.config.defences.quarantine_factor,
            read=lambda entry: (sent_tensors(federation, entry), origin_of(federation, entry)),
            say=federation.progress.say,
            note=lambda entry, evidence: federation.progress.record(
                "quarantine", device=entry.assignment.device, round=entry.assignment.round, **evidence
            ),
        )
        return [update.assignment.device for update in recorded]

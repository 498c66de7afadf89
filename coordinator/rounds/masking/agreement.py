"""Who masks together, decided while devices answer: the roster, whose shares are delivered, who may mask."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from coordinator.ledger.records import Round
from coordinator.privacy.guarantee import Guarantee, guarantee_of
from coordinator.privacy.masking_disputes import LEFT_OUT, Disputed
from coordinator.privacy.masking_handler import MaskingHandler
from coordinator.privacy.masking_records import COORDINATOR, Decided
from coordinator.rounds.collecting import dismiss
from coordinator.rounds.federation import Federation
from coordinator.rounds.masking.silence import remember
from edge.contracts.codec import decode_msgpack, encode_msgpack
from edge.contracts.envelope import MAX_MESSAGE_BYTES
from edge.contracts.masking import Reveal

KEYS_BY = 0.25
"""Share of a round's time after which those without keys are left out; a device needs them before it trains."""

SHARES_BY = 0.4
"""Likewise for the sealed shares."""

CHECKED_BY = 0.5
"""Likewise for the word that the shares it was given are in order; nobody complains later."""

OPENED_BY = 0.6
"""Until when a device that is complained of may open its shares."""

TOLD = "masks-told"
"""The code of a device that refuses since it unmasked a sum of the model before, in this run or another."""


def agree_on_masks(federation: Federation, handler: MaskingHandler, current: Round) -> None:
    """Decide what can be decided now."""
    here = (current.round, current.attempt)
    if handler.proceeding(*here) is not None:
        return
    mailed = handler.mailed(*here)
    if mailed is not None:
        if why := _why_over(federation, handler, current, mailed):
            dismiss(federation, federation.ledger.assignments.of_attempt(*here, "open", "accepted"), why)
            return
        if handler.disputes.of(*here) is not None:
            return
        _decide(federation, handler, current, mailed, ("checked", "proceed", CHECKED_BY))
    elif (roster := handler.roster(*here)) is not None:
        _decide(federation, handler, current, roster, ("shares", "mail", SHARES_BY))
    else:
        _decide(federation, handler, current, None, ("keys", "roster", KEYS_BY))


def guarantee_now(federation: Federation) -> Guarantee:
    """What the run's cohorts stand, now that some of those that may collude were named."""
    config = federation.config
    return guarantee_of(config.privacy, config.cohort.size).without(len(federation.ledger.masking.liars()))


def reports_needed(federation: Federation, *, ordered: int | None = None) -> int:
    """Updates that a masked sum has to have.

    Args:
        ordered: devices that have an order; None: not known yet.
    """
    least = federation.config.cohort.min_reports
    return max(guarantee_now(federation).reports, least if ordered is None else min(least, ordered))


def asked_before(federation: Federation, round_index: int) -> set[str]:
    """Devices that were asked to take masks off a sum of the round's model, or say that another run asked them."""
    rows = federation.ledger.masking.of_round(round_index, "reveal")
    asked = {device for row in rows for device in decode_msgpack(row, Reveal, limit=MAX_MESSAGE_BYTES).reported}
    return asked | told_before(federation, round_index)


def told_before(federation: Federation, round_index: int) -> set[str]:
    """Devices that say that they unmasked a sum of the round's model already."""
    return {d for d, of, *_ in federation.ledger.assignments.refused([TOLD], round_index) if of == round_index}


def able_devices(federation: Federation, devices: Sequence[str], round_index: int) -> list[str]:
    """Those of ``devices`` that never lied about masks, and were not asked to take any off for this model."""
    barred = asked_before(federation, round_index) | federation.ledger.masking.liars()
    return [device for device in devices if device not in barred]


def left_out(federation: Federation, round_index: int) -> dict[str, str]:
    """Device -> why the next attempt at the round goes without it, though it is no liar."""
    next_attempt = next(n for n in itertools.count() if federation.ledger.rounds.find(round_index, n) is None)
    rows = federation.ledger.masking.of_attempt(round_index, next_attempt - 1, LEFT_OUT)
    return {device: why.decode() for device, why in rows.items()}


def _decide(
    federation: Federation,
    handler: MaskingHandler,
    current: Round,
    before: Decided | None,
    phase: tuple[str, str, float],
) -> None:
    """Decide who goes on once all of ``before`` have spoken, or the phase's time is over.

    Args:
        phase: what they say, the decision that follows, and the share of the round's time after which it is made.
    """
    here, (kind, decision, by) = (current.round, current.attempt), phase
    entries = {e.device: e for e in federation.ledger.assignments.of_attempt(*here, "open", "accepted")}
    expected = list(entries) if before is None else [device for device in before.devices if device in entries]
    said = handler.spoken(*here, kind)
    if any(device not in said for device in expected) and _share_gone(federation) < by:
        return
    chosen = tuple(device for device in expected if device in said)
    guarantee = guarantee_now(federation)
    threshold = guarantee.threshold_among(len(chosen)) if before is None else before.threshold
    late = [entry for device, entry in entries.items() if device not in chosen]
    if before is not None:
        remember(federation, *here, [entry.device for entry in late], f"no '{kind}' for the masks")
    if len(chosen) < max(guarantee.reports, threshold):
        reason = (
            f"{len(chosen)} devices can mask together, too few for a sum: {max(guarantee.reports, threshold)} needed"
        )
        dismiss(federation, list(entries.values()), reason)
        federation.progress.say(f"round {current.round + 1}: {reason}")
        return
    with federation.devices.at_rest():
        if handler.disputes.of(*here) is not None:
            return  # a complaint has come meanwhile
        federation.ledger.masking.add(*here, COORDINATOR, decision, encode_msgpack(Decided(chosen, threshold)))
    dismiss(federation, late, f"no '{kind}' for the masks in time")
    {"roster": handler.send_rosters, "mail": handler.send_mail, "proceed": handler.send_proceeds}[decision](*here)


def _why_over(federation: Federation, handler: MaskingHandler, current: Round, mailed: Decided) -> str:
    """Why nobody of the attempt can mask any more; empty while they can."""
    here = (current.round, current.attempt)
    if lies := sorted({*handler.rows(*here, "lie")} & {*mailed.devices}):
        return f"{', '.join(lies)} lied about masks"
    dispute = handler.disputes.of(*here)
    if dispute is not None and not handler.rows(*here, LEFT_OUT):
        _give_up_waiting(federation, handler, current, dispute)
    return "; ".join(f"{device} is left out: {why.decode()}" for device, why in handler.rows(*here, LEFT_OUT).items())


def _give_up_waiting(federation: Federation, handler: MaskingHandler, current: Round, dispute: Disputed) -> None:
    """Leave a device out that has not opened what another one complains of, when its time is over or it is away."""
    entry = handler.assignment(current.round, current.attempt, dispute.sender)
    if entry is not None and entry.state in ("open", "accepted") and _share_gone(federation) < OPENED_BY:
        return
    why = f"it did not open the shares that '{dispute.receiver}' complains of"
    if handler.disputes.leave_out(current.round, current.attempt, dispute.sender, why):
        remember(federation, current.round, current.attempt, [dispute.sender], why)
        federation.progress.say(f"round {current.round + 1}: {dispute.sender} is left out of the next attempt: {why}")


def _share_gone(federation: Federation) -> float:
    """How much of the round's time is over, from 0 to 1."""
    return 1.0 - federation.devices.clock.remaining_s() / federation.config.cohort.deadline_s

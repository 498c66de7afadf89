"""The answers that take the masks off a sum: asked for until enough have come, or there is no more time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from coordinator.ledger.records import Round
from coordinator.privacy.masking_handler import MaskingHandler
from coordinator.privacy.masking_records import COORDINATOR, Decided
from coordinator.rounds.control import obey_within_round
from coordinator.rounds.federation import Federation
from coordinator.rounds.masking.agreement import able_devices, reports_needed
from coordinator.rounds.masking.silence import remember
from coordinator.rounds.masking.sums import entries_of, secrets_of
from edge.contracts.codec import encode_msgpack
from edge.contracts.errors import DeadlineExpired
from edge.contracts.masking import Reveal

REVEAL_S = 30.0
"""How long answers are waited for where other devices could make the round instead."""

WAIT_ROUNDS = 3.0
"""Where no others could: so many times a round's time, then the run stops where it is. Devices that are away keep
their secrets until they are back; were the attempt given up, nobody here could unmask a sum of this model any more."""

ASK_EVERY_S = 5.0


def unmask(federation: Federation, handler: MaskingHandler, current: Round, reveal: Reveal, threshold: int) -> bool:
    """Have all told that takes the masks off the sum; whether it is there. Who is found out is named.

    Raises:
        DeadlineExpired: too few answer, and no others could make the round; a run that is resumed asks again.
    """
    here = (current.round, current.attempt)
    asked = reveal.reported
    if not _wait_for(federation, current, "revealed", asked, threshold, lambda d: handler.send_reveals(*here, d)):
        return False
    if not handler.helpers(*here):
        chosen = tuple(sorted(handler.spoken(*here, "revealed"))[:threshold])
        federation.ledger.masking.add(*here, COORDINATOR, "helpers", encode_msgpack(Decided(chosen)))
    misdealt = secrets_of(handler, current).misdealt
    for device, why in misdealt.items():
        handler.lied(entries_of(federation, current)[device], why)
    if not misdealt:
        return True
    left = [device for device in reveal.reported if device not in misdealt]
    ordered = len(federation.ledger.assignments.of_attempt(*here))
    least = max(threshold, reports_needed(federation, ordered=ordered))
    if not federation.config.broker.knows_certificates or len(left) < least:
        federation.tries[current.round] -= 1  # whoever lies ends no run
        return False
    row = encode_msgpack(Decided(tuple(sorted(misdealt))))
    federation.ledger.masking.add(*here, COORDINATOR, "exclude", row)
    # The masks shared with a device that was found out are known to it and to one other device each: all have to tell.
    if _wait_for(federation, current, "excluded", left, len(left), lambda d: handler.send_excludes(*here, d)):
        return True
    federation.tries[current.round] -= 1
    return False


def _wait_for(
    federation: Federation,
    current: Round,
    kind: str,
    asked: Sequence[str],
    needed: int,
    ask: Callable[[Sequence[str]], None],
) -> bool:
    """Ask until ``needed`` of ``asked`` have said ``kind``; whether they have."""
    began, asked_at, is_told = time.monotonic(), float("-inf"), False
    longest = max(REVEAL_S, WAIT_ROUNDS * federation.config.cohort.deadline_s)
    while True:
        answered = federation.ledger.masking.devices(current.round, current.attempt, kind)
        if len(answered) >= needed:
            return True
        now = time.monotonic()
        where = f"round {current.round + 1}: {len(answered)} of {len(asked)} devices helped to unmask the sum"
        are_enough = now - began >= REVEAL_S and _are_others_enough(federation, current)
        if are_enough or now - began >= longest:
            silent = sorted({*asked} - {*answered})
            remember(federation, current.round, current.attempt, silent, f"no '{kind}' when the sum was unmasked")
            if not are_enough:
                others = reports_needed(federation)
                raise DeadlineExpired(
                    f"{where}, {needed} needed: {', '.join(silent)} said nothing for {longest:.0f} s and no others "
                    f"could make the round; bring them back, or add {others} further devices, then resume"
                )
            federation.progress.say(f"{where}, {needed} needed")
            return False
        if now - began >= ASK_EVERY_S and not is_told:
            federation.progress.say(f"{where}, {needed} needed: waiting for them, for {longest:.0f} s at most")
            is_told = True
        if now - asked_at > ASK_EVERY_S:
            ask([device for device in asked if device not in answered])
            asked_at = now
        federation.devices.wait(1.0)
        federation.on_point("collecting")
        obey_within_round(federation)


def _are_others_enough(federation: Federation, current: Round) -> bool:
    """Whether devices that are here and unmasked nothing of this model could make the round."""
    here = [hello.device for hello in federation.devices.present()]
    return len(able_devices(federation, here, current.round)) >= reports_needed(federation)

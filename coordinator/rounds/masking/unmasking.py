"""The answers that take the masks off a sum: asked for until enough have come, or there is no more time."""

from __future__ import annotations

import time

from coordinator.ledger.records import Round
from coordinator.privacy.masking_handler import MaskingHandler
from coordinator.rounds.federation import Federation
from edge.contracts.masking import Reveal

REVEAL_S = 30.0
"""How long the devices that reported are waited for to take the masks off."""


def wait_for_shares(
    federation: Federation, current: Round, handler: MaskingHandler, reveal: Reveal, threshold: int
) -> bool:
    """Ask those that reported until enough have answered; whether they have."""
    here = (current.round, current.attempt)
    give_up_at, asked_at = time.monotonic() + REVEAL_S, float("-inf")
    while True:
        answered = federation.ledger.masking.of_attempt(*here, "revealed")
        if len(answered) >= threshold:
            return True
        now = time.monotonic()
        if now >= give_up_at:
            federation.progress.say(
                f"round {current.round + 1}: {len(answered)} of {len(reveal.reported)} devices helped to unmask the "
                f"sum, {threshold} needed"
            )
            return False
        if now - asked_at > 5.0:
            handler.send_reveals(*here, [device for device in reveal.reported if device not in answered])
            asked_at = now
        federation.devices.wait(1.0)
        federation.on_point("collecting")

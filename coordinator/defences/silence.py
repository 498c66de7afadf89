"""Who wastes its place in rounds: devices that take orders and never report, or refuse each, are left out for a while.

Worked out from the ledger's assignments alone, so that a resumed run comes to the same. Nobody is held to one slow
round, and nobody is left out whom the cohort needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from coordinator.ledger.ledger import Ledger

AFTER = 3
"""Orders in a row that came to nothing, in attempts in which others reported."""
MOST_ROUNDS = 10
"""A device sits out as many rounds as it wasted orders, at most so many; then it is asked again."""
WINDOW = 50
"""Rounds looked back."""


def wasted_in_a_row(ledger: Ledger, round_index: int, *, counts_expired: bool) -> dict[str, tuple[int, int]]:
    """Device -> how many of its newest orders came to nothing, :data:`AFTER` or more, and the round of the last one.

    Args:
        counts_expired: whether an order without a report counts, and not a refusal alone.
    """
    rows = ledger.reliabilities.answers(max(0, round_index - WINDOW))
    found = {}
    for device, answers in itertools.groupby(rows, key=lambda row: row[0]):
        told = [(number, state) for _, number, state in answers if counts_expired or state != "expired"]
        streak = list(itertools.takewhile(lambda answer: answer[1] in ("refused", "expired"), reversed(told)))
        if len(streak) >= AFTER:
            found[device] = len(streak), streak[0][0]
    return found


def still_asked(
    devices: Sequence[str], wasted: dict[str, tuple[int, int]], round_index: int, *, enough: int
) -> list[str]:
    """``devices`` without those that sit out; of these, who wasted least where fewer than ``enough`` are left."""
    present = set(devices)
    out = {
        device: count
        for device, (count, last) in wasted.items()
        if device in present and round_index <= last + min(count, MOST_ROUNDS)
    }
    missing = max(0, enough - (len(devices) - len(out)))
    needed = set(sorted(out, key=lambda device: (out[device], device))[:missing])
    return [device for device in devices if device not in out or device in needed]

"""The wait for a round's updates: when it is over, what is repeated meanwhile, and who is let go at the end.

It asks the ledger for numbers only; a round of a thousand devices looks a thousand times.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from coordinator.ledger.records import Assignment, Round
from coordinator.rounds.federation import Federation
from coordinator.rounds.selection import asks_all
from edge.contracts.plan import read_order

STORE_DEADLINE_S = 5.0
REANNOUNCE_S = 15.0


class Collecting:
    """One attempt at a round while its devices work."""

    def __init__(self, federation: Federation, current: Round) -> None:
        self._federation = federation
        self._here = (current.round, current.attempt)
        entries = federation.ledger.assignments.of_attempt(*self._here)
        self._ordered = len(entries)
        # Scores, releases and final statistics are asked of all: none of them stands for another.
        orders = [read_order(entry.order) for entry in entries[:1] if entry.order]
        self._awaits_all = any(
            not order.upload or any(asks_all(federation.config, turn.program) for turn in order.schedule.turns)
            for order in orders
        )
        self._announced_at = self._stored_at = self._present_at = time.monotonic()

    def why_over(self) -> str:
        """Why nobody is waited for any longer, in words; empty while somebody is."""
        cohort, ledger = self._federation.config.cohort, self._federation.ledger
        if not ledger.assignments.open_count(*self._here):
            return "everybody answered"
        if self._federation.devices.clock.remaining_s() == 0:
            return "deadline"
        is_drawn = self._ordered > cohort.size and not self._awaits_all
        if is_drawn and len(ledger.updates.devices(*self._here)) >= cohort.size:
            return f"{cohort.size} reports are in"
        if cohort.leave_after_s and self._left_for_s() >= cohort.leave_after_s:
            return f"whoever is awaited has been away for {cohort.leave_after_s:g} s"
        return ""

    def wait(self) -> None:
        """Until something changes, for a second at most; time left and open orders are repeated when they are due."""
        ledger, now = self._federation.ledger, time.monotonic()
        if now - self._stored_at > STORE_DEADLINE_S:
            ledger.rounds.set_deadline(*self._here, self._federation.devices.clock.remaining_s())
            self._stored_at = now
        if now - self._announced_at > REANNOUNCE_S:
            for entry in ledger.assignments.of_attempt(*self._here, "open"):
                self._federation.devices.announce(entry.device)
            self._announced_at = now
        self._federation.devices.wait(min(1.0, self._federation.devices.clock.remaining_s()))

    def let_go(self, why: str) -> None:
        """Give up what is unanswered, tell its devices, and say so."""
        federation = self._federation
        pending = federation.ledger.assignments.of_attempt(*self._here, "open", "accepted")
        late = dismiss(federation, pending, why)
        if late:
            federation.progress.round_line(
                self._here[0], federation.config.federation.rounds, f"{why}: no report from {', '.join(late)}"
            )

    def _left_for_s(self) -> float:
        """Seconds since the last of those awaited was here, once there are reports enough without them; else 0."""
        federation, now = self._federation, time.monotonic()
        pending = federation.ledger.assignments.of_attempt(*self._here, "open", "accepted")
        members = [federation.devices.member(entry.device) for entry in pending]
        enough = min(federation.config.cohort.min_reports, self._ordered)
        if (
            any(member is not None and member.is_present(now) for member in members)
            or len(federation.ledger.updates.devices(*self._here)) < enough
        ):
            self._present_at = now
        return now - self._present_at


def dismiss(federation: Federation, entries: Sequence[Assignment], why: str) -> list[str]:
    """Expire assignments and tell their devices to forget them; the devices of those not answered just before."""
    late = []
    for entry in entries:
        if federation.ledger.assignments.expire(entry.assignment_id):
            late.append(entry.device)
            reason = f"round {entry.round}, attempt {entry.attempt}: not waited for any longer, {why}"
            federation.devices.dismiss(entry, reason)
    return late

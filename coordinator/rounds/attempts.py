"""How often a round is tried before the run stops and says why."""

from __future__ import annotations

import itertools

from coordinator.rounds.federation import Federation
from coordinator.rounds.metrics import missing_reports
from edge.contracts.errors import DeadlineExpired

MAX_ATTEMPTS = 5
"""Attempts at one round by one process; a run that is resumed has as many again, for what stopped it may be mended."""


def next_attempt(federation: Federation, round_index: int, *, least: int, what: str = "round") -> int:
    """The number of the attempt that is to be planned now; it counts as a try.

    Args:
        least: updates that an attempt needs.
        what: the round is called.

    Raises:
        DeadlineExpired: this process has tried often enough.
    """
    attempt = next(n for n in itertools.count() if federation.ledger.rounds.find(round_index, n) is None)
    federation.tries[round_index] += 1
    if federation.tries[round_index] > MAX_ATTEMPTS:
        why = missing_reports(federation.ledger.assignments.of_attempt(round_index, attempt - 1))
        raise DeadlineExpired(
            f"{what} {round_index + 1}: {MAX_ATTEMPTS} attempts ended with fewer than {least} reports, "
            f"the last one so: {why}; mend that, then resume the run"
        )
    return attempt

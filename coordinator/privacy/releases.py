"""What the rounds of a run let out, from its ledger: which draws there were, and who hides whom in them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coordinator.ledger.ledger import Ledger
from coordinator.privacy.accountant import Release

LATELY = 10
"""Rounds: a device counts among those a cohort is drawn from while it has reported in one of the last so many."""


class Mechanism(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt at a round adds to its sum; a row of the ledger.

    Attributes:
        seed: of the noise; secret, it would undo it. Empty once the round is committed.
        clip_norm, multiplier: the noise has deviation clip_norm * multiplier on the sum.
        denominator: what the sum is divided by, whoever reports.
        cohort: devices that were drawn.
        population: devices they were drawn from, of those known to train.
        silent: of these, how many were drawn for the round and had not reported when its sum was made.
    """

    seed: bytes
    clip_norm: float
    multiplier: float
    denominator: int
    cohort: int
    population: int
    silent: int = 0


Draw = tuple[int, int]
"""Cohort and population of an attempt."""


def mechanism_of(ledger: Ledger, round_index: int, attempt: int) -> Mechanism | None:
    """What the attempt adds to its sum; None where nothing was written of it."""
    return mechanisms(ledger).get((round_index, attempt))


def mechanisms(ledger: Ledger) -> dict[tuple[int, int], Mechanism]:
    """(Round, attempt) -> what it adds to its sum."""
    return {key: msgspec.json.decode(row, type=Mechanism) for key, row in ledger.privacy.all().items()}


def known_to_train(ledger: Ledger, round_index: int, devices: Sequence[str]) -> int:
    """How many of ``devices`` have reported in one of the rounds before this, and lately.

    Whoever only says hello makes nobody's part in a cohort less likely than it looks.
    """
    return len(ledger.updates.reporters(round_index - LATELY, before=round_index) & set(devices))


def released(multiplier: float, draws: Sequence[Draw], silent: int = 0) -> Release:
    """What the last of a round's ``draws`` lets out; of its population ``silent`` were drawn in vain.

    A device that is in no released sum of an attempt that failed may be in that of the next one: its chance of being in
    one is at most the sum of its chances, and is taken for that.
    """
    population = max(1, min(population for _, population in draws) - silent)
    return Release(multiplier, min(population, sum(cohort for cohort, _ in draws)), population)


def releases(ledger: Ledger) -> list[Release]:
    """Of every attempt whose sum was made or may have been: abandoned ones had none, but cost the one after them."""
    rows = mechanisms(ledger)
    draws: dict[int, list[Draw]] = {}
    found = []
    for entry in ledger.rounds.all():
        mechanism = rows.get((entry.round, entry.attempt))
        draws.setdefault(entry.round, []).append(_draw(mechanism))
        if mechanism is not None and entry.state in ("aggregating", "committed"):
            found.append(released(mechanism.multiplier, draws[entry.round], mechanism.silent))
    return found


def draws_of(ledger: Ledger, round_index: int) -> list[Draw]:
    """Of every attempt at a round until now, in order."""
    rows = mechanisms(ledger)
    return [_draw(rows.get((r.round, r.attempt))) for r in ledger.rounds.all() if r.round == round_index]


def _draw(mechanism: Mechanism | None) -> Draw:
    """Everybody, where a process was killed before it wrote who was drawn."""
    return (1, 1) if mechanism is None else (mechanism.cohort, mechanism.population)

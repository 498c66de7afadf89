"""An update that stops its round's sum: found, set aside with the evidence, and the sum made without it.

Participants are in the ledger before they are summed, and most of what can be wrong with an update is found before
that. What a method finds only when it computes with it (a teacher whose predictions overflow) would else stop the round
again at every resume. The same updates are set aside however often the sum is made: which ones is in the ledger.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from coordinator.aggregation.choice import rule_class
from coordinator.ledger.records import RecordedUpdate, Round
from coordinator.rounds.federation import Federation
from coordinator.submodels.values import NotFinite, Update
from edge.contracts.errors import PlanError, UpdateRejected

CODE = "stops-the-sum"
"""Of a quarantine for an update that a sum cannot be made with."""

FAR = 10.0
"""Where a sum has values that are not finite, an update so many times as large as the median is what did it."""


class AttemptGivenUp(PlanError):
    """Too few updates are left of an attempt; its round is repeated."""


class Watched:
    """The updates of a sum, one at a time; says which one was in hand when the sum ended early."""

    def __init__(self, updates: Iterator[Update]) -> None:
        self._updates = updates
        self._given = 0
        self._is_reading = False

    def __iter__(self) -> Iterator[Update]:
        return self

    def __next__(self) -> Update:
        self._is_reading = True
        update = next(self._updates)
        self._is_reading = False
        self._given += 1
        return update

    @property
    def in_hand(self) -> int | None:
        """The place of the update that was read or computed with; None before the first."""
        return self._given if self._is_reading else self._given - 1 if self._given else None


def set_aside(
    federation: Federation,
    current: Round,
    recorded: Sequence[RecordedUpdate],
    in_hand: int | None,
    error: UpdateRejected | NotFinite,
) -> None:
    """Take the update that ``error`` is about out of the sum.

    Raises:
        AttemptGivenUp: too few are left, or it is nobody's in particular; the attempt is abandoned.
        UpdateRejected, NotFinite: ``error``, where no single update was read.
    """
    if in_hand is None:
        raise error
    place, ledger = in_hand if isinstance(error, UpdateRejected) else _furthest(federation, recorded), federation.ledger
    if place is None or place >= len(recorded):
        ledger.rounds.give_up(current.round, current.attempt, reason=str(error)[:1000])
        raise AttemptGivenUp(f"round {current.round + 1}: {error}; no update stands out, the round is repeated")
    entry = recorded[place]
    device, left = entry.assignment.device, len(recorded) - 1
    rule, trim = federation.config.aggregation.rule, federation.config.aggregation.trim
    needed = 1 if rule == "mean" else rule_class(rule).least_updates(trim)
    evidence = {"reason": str(error)[:1000], "update_digest": entry.update_digest}
    federation.progress.say(f"{device}, round {current.round + 1}: update set aside, the sum stops at it: {error}")
    federation.progress.record("quarantine", device=device, round=entry.assignment.round, **evidence)
    if left >= needed:
        ledger.quarantine.take_out(
            entry.assignment.assignment_id, current.round, current.attempt, code=CODE, evidence=evidence
        )
        return
    ledger.rounds.give_up(
        current.round, current.attempt, reason=f"the update of {device} stops the sum: {error}"[:1000]
    )
    ledger.quarantine.add(entry.assignment.assignment_id, code=CODE, evidence=evidence)
    raise AttemptGivenUp(f"round {current.round + 1}: {left} updates are left, {needed} needed: the round is repeated")


def _furthest(federation: Federation, recorded: Sequence[RecordedUpdate]) -> int | None:
    """The place of the update with the largest values, where they are far from the others'."""
    sizes = [_size(federation.devices.update(federation, entry)) for entry in recorded]
    largest = max(range(len(sizes)), key=sizes.__getitem__, default=None)
    return largest if largest is not None and sizes[largest] > FAR * statistics.median(sizes) else None


def _size(update: Update) -> float:
    """The root of the mean square of an update's floating-point values."""
    import numpy as np

    values = [value for value in update.tensors.values() if value.dtype.kind == "f" and value.size]
    squares = sum(float(np.square(value, dtype=np.float64).sum()) for value in values)
    return math.sqrt(squares / max(1, sum(value.size for value in values)))

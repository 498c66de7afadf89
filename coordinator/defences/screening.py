"""Screening: which of a round's updates are so unlike the others that they are set aside, and the evidence for it.

Compared is how far training moved a device from the weights it got, as the root of the mean square over the entries it
trained, so that cuts of different sizes compare; with the median of the same level's updates where there are three or
more, of all otherwise. A median of three moves only where two are hostile. Whether a single direction is bad a norm
cannot tell: a sign flip has the norm of an honest update, and rules are for that (docs/defences.md).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coordinator.aggregation.summing import squared_difference
from coordinator.ledger.records import RecordedUpdate

if TYPE_CHECKING:
    from coordinator.ledger.ledger import Ledger
    from coordinator.submodels.values import Tensors

LEAST = 3
"""Updates that a median takes to tell one of them from the others."""

CODE = "norm"
"""Of a quarantine for an update's norm."""

Read = Callable[[RecordedUpdate], tuple["Tensors", "Tensors"]]
"""From a recorded update to its tensors and the weights it was trained from."""


@dataclass(frozen=True)
class Movement:
    """How far an update is from its weights.

    Attributes:
        rms: root of the mean squared difference over all floating-point entries that both hold.
        largest: (tensor, its share of the sum of squares) of the tensor that moved most.
    """

    rms: float
    largest: tuple[str, float]


def movement(trained: Tensors, origin: Tensors) -> Movement:
    """How far ``trained`` is from ``origin``; what only one of them holds (accumulators) does not count."""
    squares, count = dict[str, float](), 0
    for name, value in trained.items():
        before = origin.get(name)
        if before is None or value.dtype.kind != "f" or value.shape != before.shape or not value.size:
            continue
        squares[name] = squared_difference(value, before)
        count += value.size
    total = sum(squares.values())
    if not count or not total:
        return Movement(0.0, ("", 0.0))
    name = max(squares, key=lambda key: squares[key])
    return Movement(math.sqrt(total / count), (name, squares[name] / total))


def outliers(
    movements: Mapping[str, Movement], levels: Mapping[str, str], factor: float
) -> dict[str, tuple[float, str]]:
    """Key -> (the median it was compared with, of whom) of those further than ``factor`` medians from their weights.

    Args:
        movements, levels: by the same keys.
    """
    of_level: dict[str, list[float]] = {}
    for key, found in movements.items():
        of_level.setdefault(levels[key], []).append(found.rms)
    everyone = [found.rms for found in movements.values()]
    apart = {}
    for key, found in movements.items():
        own = of_level[levels[key]]
        compared, whose = (own, f"level '{levels[key]}'") if len(own) >= LEAST else (everyone, "all levels")
        middle = statistics.median(compared)
        if len(compared) >= LEAST and found.rms > factor * middle:
            apart[key] = (middle, whose)
    return apart


def screened(
    ledger: Ledger,
    recorded: Sequence[RecordedUpdate],
    factor: float,
    *,
    read: Read,
    say: Callable[[str], None],
    note: Callable[[RecordedUpdate, Mapping[str, Any]], None] = lambda entry, evidence: None,
) -> list[RecordedUpdate]:
    """Those of ``recorded`` that may be summed; the others are in quarantine, with the evidence, when this returns.

    The same updates give the same result however often this is done.

    Args:
        factor: ``[defences] quarantine-factor``; 0 = nothing is compared.
        note: called with every update that is set aside, and the evidence.
    """
    aside = {entry.assignment_id for entry in ledger.quarantine.all()}
    kept = [entry for entry in recorded if entry.assignment.assignment_id not in aside]
    if not factor:
        return kept
    movements = {entry.assignment.assignment_id: movement(*read(entry)) for entry in recorded}
    levels = {entry.assignment.assignment_id: entry.assignment.level for entry in recorded}
    apart = outliers(movements, levels, factor)
    for entry in kept:
        key = entry.assignment.assignment_id
        if key not in apart:
            continue
        evidence = evidence_of(entry, movements[key], apart[key], factor)
        ledger.quarantine.add(key, code=CODE, evidence=evidence)
        note(entry, evidence)
        say(
            f"{entry.assignment.device}, round {entry.assignment.round + 1}: update set aside, it moved "
            f"{movements[key].rms:.3g} per entry, and {factor:g} times the median {apart[key][0]:.3g} of "
            f"{apart[key][1]} is the limit; see `apportion quarantine ls`"
        )
    return [entry for entry in kept if entry.assignment.assignment_id not in apart]


def evidence_of(entry: RecordedUpdate, found: Movement, compared: tuple[float, str], factor: float) -> dict[str, Any]:
    """What is kept of why an update was set aside, as JSON values; the format is in docs/defences.md."""
    return {
        "rms": found.rms,
        "median": compared[0],
        "compared_with": compared[1],
        "factor": factor,
        "largest_tensor": found.largest[0],
        "largest_share": round(found.largest[1], 4),
        "num_examples": entry.report.num_examples,
        "attempt": entry.assignment.attempt,
        "level": entry.assignment.level,
        "update_digest": entry.update_digest,
    }

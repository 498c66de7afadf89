"""Members that say nothing: each makes the others wait, so whoever does it again and again is left out for a while."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from coordinator.rounds.federation import Federation

SILENT = "silent"
"""What is kept of a member that said nothing in time, or refused: in which phase."""

OFTEN, OF_ATTEMPTS = 2, 3
"""A device that was silent so often within so many attempts of the run, one after the other, is left out ..."""

ROUNDS_OUT = 3
"""... of so many rounds after the last of them, while others are enough. Once is nothing: devices are slow at times."""


def remember(federation: Federation, round_index: int, attempt: int, devices: Iterable[str], why: str) -> None:
    """Remember that members of an attempt said nothing."""
    for device in devices:
        federation.ledger.masking.add(round_index, attempt, device, SILENT, why.encode())


def silent_devices(federation: Federation, round_index: int) -> dict[str, int]:
    """Device -> the first round (from 0) that it may take part in again."""
    attempts = {(r.round, r.attempt): number for number, r in enumerate(federation.ledger.rounds.all())}
    by_device: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for round_, attempt, device in federation.ledger.masking.silences():
        if (round_, attempt) in attempts:
            by_device[device].append((attempts[round_, attempt], round_))
    out = {}
    for device, silences in by_device.items():
        for (first, _), (last, round_) in zip(silences, silences[OFTEN - 1 :], strict=False):
            if last - first < OF_ATTEMPTS and round_index <= round_ + ROUNDS_OUT:
                out[device] = round_ + ROUNDS_OUT + 1
    return out

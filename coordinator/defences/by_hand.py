"""What an operator does against a device by hand, and for it: set its update aside, let it take part again."""

from __future__ import annotations

from typing import NamedTuple

from coordinator.defences.reliability import cleared
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.quarantine import Quarantined
from edge.contracts.errors import LedgerError


class LetBack(NamedTuple):
    """That a device may take part again.

    Attributes:
        released: its updates that were dropped from quarantine; no round counts them.
        barred_until: index of the first round that it may take part in.
    """

    released: int
    barred_until: int


def set_aside(ledger: Ledger, device: str, reason: str) -> Quarantined:
    """Keep a device's update of the open round out of every sum, also when its sum has begun and cannot be made.

    Raises:
        LedgerError: no update of the device waits to be counted.
    """
    evidence = {"reason": reason}
    current = ledger.rounds.open()
    recorded = () if current is None else ledger.updates.of_attempt(current.round, current.attempt)
    mine = [entry.assignment.assignment_id for entry in recorded if entry.assignment.device == device]
    if current is None or not mine:
        raise LedgerError(f"no update of device '{device}' waits to be counted; see `apportion quarantine ls`")
    if current.state == "aggregating":
        ledger.quarantine.take_out(mine[0], current.round, current.attempt, code="by-hand", evidence=evidence)
    else:
        ledger.quarantine.add(mine[0], code="by-hand", evidence=evidence)
    (found,) = [entry for entry in ledger.quarantine.all() if entry.assignment_id == mine[0]]
    return found


def let_back(ledger: Ledger, device: str) -> LetBack:
    """Drop a device's updates from quarantine and let it take part from the next round on; none is counted.

    Raises:
        LedgerError: nothing is held against it.
    """
    mine = [entry for entry in ledger.quarantine.all() if entry.device == device]
    if not mine and device not in ledger.reliabilities.all() and device not in ledger.reliabilities.offenders(0):
        raise LedgerError(f"nothing is held against device '{device}'; see `apportion quarantine ls`")
    last = ledger.rounds.last_committed()
    reliability = cleared(ledger, device, 0 if last is None else last.round + 1)
    for entry in mine:
        ledger.quarantine.release(entry.assignment_id)
    return LetBack(len(mine), reliability.barred_until)

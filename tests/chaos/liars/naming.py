"""Whether each liar was named and out at once, none of its updates counted, and no honest device paid for it.

Read from the ledger's rows, its audit log and the coordinator's lines: a row alone tells nobody, a line alone keeps
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.audit_log import actors
from coordinator.audit_log.entry import Entry
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from tests.chaos.liars import broker
from tests.chaos.liars.kinds import KINDS, Liar

EVIDENCE = ("device-named", "update-quarantined", "device-barred")
"""Entries of the audit log about a device that did what no honest one does."""

TRAFFIC = "traffic-dropped"
"""The entry about messages in a device's name that were over its budget: of a liar evidence, of others no charge."""

FLOOD = 1500
"""Messages to one coordinator process after which a liar has to be named for their number: budgets are a process's, and
one that is killed in the middle of a flood names nobody."""

GIVEN_UP = 1
"""Orders of a liar that may end unanswered before the one that it is rejected for: a fault may eat an attempt."""


@dataclass
class Naming:
    """What was found; every list holds one line per finding.

    Attributes:
        liars: all there were.
        named: those with a row and a line that say what they did.
        unnamed: the others, with what is known of each.
        late: of the named ones, those that had a further order, or too many before.
        counted: rounds that count an update of a liar.
        honest_barred: honest devices that were rejected, set aside or barred.
    """

    liars: int = 0
    named: int = 0
    unnamed: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)
    honest_barred: list[str] = field(default_factory=list)


def naming_of(
    ledger: Ledger, liars: Sequence[Liar], honest: Sequence[str], log: str, *, heard: Mapping[tuple[str, int], int]
) -> Naming:
    """What ``ledger`` and ``log``, everything the coordinators said, hold against ``liars`` and ``honest`` devices."""
    found = Naming(liars=len(liars))
    rounds = ledger.rounds.all()
    rows = [row for r in rounds for row in ledger.assignments.of_attempt(r.round, r.attempt)]
    aside = {entry.assignment_id: f"{entry.code}" for entry in ledger.quarantine.all()}
    lines, entries = log.splitlines(), list(ledger.audit_log.entries())
    for liar in liars:
        if not KINDS[liar.kind].is_member:
            _judge_between(found, liar, lines)
            continue
        own = [row for row in rows if row.device == liar.name]
        about = [e for e in entries if e.subject == actors.device(liar.name)]
        evidence = [e for e in about if e.action in (*EVIDENCE, TRAFFIC)]
        most = max((count for (name, _), count in heard.items() if name == liar.name), default=0)
        _judge(found, liar, own, aside, [line for line in lines if liar.name in line], evidence, is_flood=most > FLOOD)
    names = {liar.name for liar in liars}
    for attempt in rounds:
        counted = {u.assignment.device for u in ledger.updates.counted(attempt.round, attempt.attempt)}
        if attempt.state == "committed":
            where = f"round {attempt.round}.{attempt.attempt}"
            found.counted += [f"{where} counts the update of {device}" for device in sorted(counted & names)]
    standing = ledger.reliabilities.all()
    for device in honest:
        bad = [row for row in rows if row.device == device and (row.state == "rejected" or row.assignment_id in aside)]
        found.honest_barred += [
            f"{device}, round {row.round}.{row.attempt}: {row.state} {row.code} {row.reason}" for row in bad
        ]
        accused = [e for e in entries if e.subject == actors.device(device) and e.action in EVIDENCE]
        if not bad and accused:
            found.honest_barred.append(f"{device}: {accused[0].action} {accused[0].values()}")
        if not bad and device in standing and standing[device].barred_until:
            found.honest_barred.append(f"{device} is barred until round {standing[device].barred_until}")
    return found


def _judge(
    found: Naming,
    liar: Liar,
    own: Sequence[Assignment],
    aside: dict[str, str],
    lines: Sequence[str],
    evidence: Sequence[Entry],
    *,
    is_flood: bool,
) -> None:
    states = ", ".join(f"{row.round}.{row.attempt} {row.state} {row.code}" for row in own) or "no order"
    if not KINDS[liar.kind].is_caught:
        over = [row for row in own if row.state in ("expired", "rejected") and row.code and row.reason]
        told = any(_says_late(line) or _says_bad(line) for line in lines)
        if own and len(over) == len(own) and told and (evidence or not is_flood):
            found.named += 1
        else:
            found.unnamed.append(f"{liar}: {states}")
        return
    bad = [i for i, row in enumerate(own) if row.assignment_id in aside or (row.state == "rejected" and row.reason)]
    if not bad or not any(map(_says_bad, lines)) or not evidence:
        found.unnamed.append(f"{liar}: {states}; {len(lines)} lines and {len(evidence)} entries name it")
        return
    found.named += 1
    if bad[0] > GIVEN_UP or bad[0] != len(own) - 1:
        found.late.append(f"{liar}: {states}")


def _judge_between(found: Naming, liar: Liar, lines: Sequence[str]) -> None:
    """Of what is no device there is no row; that something was forged is told."""
    missing = [words for words in broker.NAMES if not any(words in line for line in lines)]
    if missing:
        found.unnamed.append(f"{liar}: no line with {' or '.join(missing)}")
    else:
        found.named += 1


def _says_bad(line: str) -> bool:
    return "update rejected" in line or "set aside" in line or "sits out" in line


def _says_late(line: str) -> bool:
    return "no report" in line or "not waited for" in line or "over its" in line

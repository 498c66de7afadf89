"""What the audit of a ledger finds: nothing in one that was written by its methods, and each rule that is broken."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from coordinator.ledger.audit import SHOWN
from coordinator.ledger.database import statement
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment
from tests.coordinator.ledger.test_rounds import FEDERATION, assignment, collecting, report


@pytest.fixture
def ledger(ledger_place: Path | str) -> Iterator[Ledger]:
    with Ledger.create(ledger_place, federation=FEDERATION, config="", seed=0) as opened:
        yield opened


def record(ledger: Ledger, entries: Sequence[Assignment]) -> None:
    for entry in entries:
        ledger.updates.record(entry.assignment_id, update_digest=entry.assignment_id, size=8, report=report(entry))


def committed(ledger: Ledger, round_index: int, *devices: str) -> list[Assignment]:
    """A round that ``devices`` reported in, summed and committed."""
    entries = collecting(ledger, *devices, round_index=round_index)
    ledger.blobs.add(entries[0].weights_digest, 4)
    record(ledger, entries)
    ledger.rounds.move(round_index, 0, "aggregating", participants=devices)
    ledger.blobs.add(f"{round_index}e" * 32, 4)
    ledger.rounds.move(round_index, 0, "committed", model_digest=f"{round_index}e" * 32)
    ledger.blobs.release(round_index)
    return entries


def change(ledger: Ledger, *statements: str) -> None:
    with ledger._file.transaction() as sql:
        for words in statements:
            sql.execute(statement(words))


def test_ledger_that_was_written_by_its_methods_has_no_findings(ledger: Ledger) -> None:
    assert ledger.audit.findings() == []
    for round_index in range(3):
        committed(ledger, round_index, "a", "b", "c")
    entries = collecting(ledger, "a", "b", "c", "d", round_index=3)
    ledger.blobs.add(entries[0].weights_digest, 4)
    record(ledger, entries[:3])
    ledger.quarantine.add(entries[2].assignment_id, code="norm", evidence={"norm": 1e9})
    ledger.assignments.expire(entries[3].assignment_id)
    assert ledger.audit.findings() == []
    ledger.rounds.move(3, 0, "aggregating", participants=["a", "b"])
    assert ledger.audit.findings() == []


@pytest.mark.parametrize(
    ("broken", "finding"),
    [
        ("UPDATE assignments SET state = 'open' WHERE round = 1 AND device = 'a'", "has an update and is not reported"),
        ("UPDATE assignments SET state = 'lost' WHERE round = 1 AND device = 'a'", "is in state 'lost'"),
        ("UPDATE rounds SET state = 'done' WHERE round = 0", "rounds: 0 is in state 'done'"),
        ("UPDATE federation SET state = 'gone'", "federation: fed is in state 'gone'"),
        (
            "DELETE FROM contributions WHERE round = 1",
            r"2 participants and counts 0 updates; not counted: \['a', 'b'\]",
        ),
        ("UPDATE rounds SET state = 'abandoned' WHERE round = 0", "by a round that was never aggregated"),
        ("UPDATE contributions SET round = 0 WHERE round = 1", "is counted by a round before its own"),
        ("UPDATE updates SET waits = 1", "is counted or quarantined and waits to be counted"),
        ("UPDATE rounds SET model_digest = '' WHERE round = 0", "round 0, attempt 0 is committed without a model"),
        ("DELETE FROM blobs WHERE digest LIKE '1e%'", "its model 1e1e1e1e1e1e has no blob row"),
        ("UPDATE rounds SET state = 'collecting'", r"2 attempts are open, at most 1 may be: 0\.0 collecting"),
        ("UPDATE rounds SET state = 'collecting' WHERE round = 0", "is collecting, and round 1 is committed already"),
    ],
)
def test_each_broken_rule_is_found(broken: str, finding: str, ledger: Ledger) -> None:
    for round_index in range(2):
        committed(ledger, round_index, "a", "b")
    assert ledger.audit.findings() == []
    change(ledger, broken)
    assert re.search(finding, "\n".join(ledger.audit.findings()))


def test_updates_and_blobs_that_are_gone_are_found(ledger: Ledger) -> None:
    first, second, third = collecting(ledger, "a", "b", "c")
    record(ledger, [first, second])
    change(ledger, f"DELETE FROM blobs WHERE digest = '{second.assignment_id}'")
    unanswered = f"assignment {third.assignment_id} of c in round 0.0 is unanswered and its weights have no blob row"
    waiting = f"assignment {second.assignment_id} of b in round 0.0 waits to be counted and its update has no blob row"
    assert ledger.audit.findings() == [waiting, unanswered]
    ledger.blobs.add(third.weights_digest, 1)
    ledger.rounds.move(0, 0, "aggregating", participants=["a", "b"])
    (found,) = ledger.audit.findings()
    assert found.endswith("of b in round 0.0 is counted by a round under way and its update has no blob row")


def test_update_that_is_gone_from_its_table_is_found(ledger: Ledger) -> None:
    (entry,) = collecting(ledger, "a")
    record(ledger, [entry])
    change(ledger, "DELETE FROM updates")
    assert ledger.audit.findings() == [
        f"assignment {entry.assignment_id} of a in round 0.0 is reported and has no update"
    ]


def test_round_that_is_committed_twice_is_found(ledger: Ledger) -> None:
    committed(ledger, 0, "a")
    names = "round, attempt, state, deadline_s, participants, model_digest, metrics"
    change(ledger, f"INSERT INTO rounds ({names}) SELECT {names.replace('attempt', '1')} FROM rounds")
    found = ledger.audit.findings()
    assert "round 0 is committed twice, as attempt 0 and 1" in found
    assert any(line.startswith("round 0, attempt 1 is committed with 1 participants and counts 0") for line in found)


def test_many_findings_of_one_kind_are_counted(ledger: Ledger) -> None:
    entries = [assignment(f"d{number:02}") for number in range(SHOWN + 5)]
    ledger.rounds.plan(0, 0, deadline_s=1.0, assignments=entries)
    found = ledger.audit.findings()
    assert len(found) == SHOWN + 1
    assert found[-1] == "and 5 more of the last kind"

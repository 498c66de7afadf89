"""The audit log of a run: an entry for each thing that matters, in the transaction of what it records."""

from __future__ import annotations

import os
import pwd
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.audit_log import actors
from coordinator.ledger.database import statement
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.quarantine import Reliability
from edge.contracts.errors import LedgerError
from profiles.device import DeviceProfile
from tests.coordinator.ledger.older_tables import back_to_version_5
from tests.coordinator.ledger.test_rounds import FEDERATION, assignment, collecting, report
from tests.coordinator.ledger.test_versions import old_ledger


@pytest.fixture
def ledger(ledger_place: Path | str) -> Iterator[Ledger]:
    with Ledger.create(ledger_place, federation=FEDERATION, config="x", seed=3) as opened:
        yield opened


def test_operator_is_the_account_and_not_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(variable, "alice\n2 operator:bob")
    assert "alice" not in actors.operator()
    assert actors.operator().startswith(f"operator:{pwd.getpwuid(os.getuid()).pw_name}@")


def log_of(ledger: Ledger) -> list[tuple[str, str]]:
    return [(entry.action, entry.subject) for entry in ledger.audit_log.entries()]


def last(ledger: Ledger) -> tuple[str, str, str, dict[str, Any]]:
    entry = ledger.audit_log.head()
    return entry.actor, entry.action, entry.subject, entry.values()


def change(ledger: Ledger, words: str) -> None:
    with ledger._file.transaction() as sql:
        sql.execute(statement(words))


def test_run_begins_its_log_and_a_coordinator_goes_on_with_it(ledger: Ledger) -> None:
    begun = ledger.audit_log.head()
    assert (begun.number, begun.action, begun.subject) == (1, "run-begun", "run:fed")
    assert begun.actor.startswith("operator:")
    assert begun.values() == {"nonce": ledger.nonce, "seed": 3, "config_digest": ledger.federation().config_digest}
    ledger.led_by("one")
    ledger.led_by("two")
    ledger.move_federation("finished")
    assert log_of(ledger)[1:] == [("run-resumed", "run:fed"), ("run-ended", "run:fed")]
    assert ledger.audit_log.head().actor == "coordinator:two"
    assert ledger.audit_log.checked().findings == ()


def test_answers_of_devices_are_entries_with_their_codes(ledger: Ledger) -> None:
    entries = collecting(ledger, "a", "b", "c")
    ledger.assignments.move(entries[0].assignment_id, "refused", code="policy", reason="$.methods: no")
    assert last(ledger) == (
        "device:a",
        "order-refused",
        "round:0.0",
        {
            "code": "policy",
            "why": "$.methods: no",
            "round": 0,
            "attempt": 0,
            "assignment_id": entries[0].assignment_id,
        },
    )
    count = len(log_of(ledger))
    assert not ledger.assignments.move(entries[0].assignment_id, "refused", code="policy", reason="again")
    assert len(log_of(ledger)) == count
    ledger.assignments.move(entries[1].assignment_id, "rejected", code="update-rejected", reason="nan in 'fc1'\0")
    actor, action, subject, details = last(ledger)
    assert (action, subject, details["what"], details["why"]) == (
        "device-named",
        "device:b",
        "update-rejected",
        "nan in 'fc1'\0",
    )
    assert actor.startswith("operator:")
    assert ledger.audit_log.checked().findings == ()


def test_quarantine_bars_and_releases_are_entries_with_their_evidence(ledger: Ledger) -> None:
    entries = collecting(ledger, "a", "b")
    for entry in entries:
        ledger.updates.record(entry.assignment_id, update_digest="d" * 64, size=1, report=report(entry))
    ledger.quarantine.add(entries[0].assignment_id, code="norm", evidence={"rms": 8.5, "median": 0.25})
    assert last(ledger)[1:3] == ("update-quarantined", "device:a")
    assert last(ledger)[3] == {
        "rms": 8.5,
        "median": 0.25,
        "code": "norm",
        "round": 0,
        "assignment_id": entries[0].assignment_id,
    }
    ledger.quarantine.release(entries[0].assignment_id)
    assert last(ledger)[1:3] == ("update-released", "device:a")
    assert not ledger.quarantine.release(entries[0].assignment_id)
    ledger.reliabilities.put([Reliability(device="a", score=0.5, barred_until=7), Reliability(device="b", score=1.0)])
    assert last(ledger)[1:] == (
        "device-barred",
        "device:a",
        {"until_round": 7, "score": 0.5, "rejected": 0, "quarantined": 0},
    )
    count = len(log_of(ledger))
    ledger.reliabilities.put([Reliability(device="a", score=0.4, barred_until=7)])
    assert len(log_of(ledger)) == count
    ledger.reliabilities.put([Reliability(device="a", score=1.0)])
    assert last(ledger)[1] == "device-let-back"


def test_rounds_are_entries_when_they_end(ledger: Ledger) -> None:
    collecting(ledger, "a")
    ledger.rounds.move(0, 0, "abandoned", reason="0 reports, 1 needed")
    assert last(ledger)[1:] == ("round-failed", "round:0.0", {"why": "0 reports, 1 needed"})
    (entry,) = collecting(ledger, "a", attempt=1)
    ledger.updates.record(entry.assignment_id, update_digest="d" * 64, size=1, report=report(entry))
    ledger.rounds.move(0, 1, "aggregating", participants=["a"])
    ledger.blobs.add("e" * 64, 4)
    metrics = {"reports": 1, "train_loss": 0.5, "privacy": {"epsilon": 1.5, "delta": 1e-5}}
    ledger.rounds.move(0, 1, "committed", model_digest="e" * 64, metrics=metrics)
    assert last(ledger)[1:] == (
        "round-committed",
        "round:0.1",
        {"weights": "e" * 64, "reports": 1, "privacy": {"epsilon": 1.5, "delta": 1e-5}},
    )
    collecting(ledger, "a", round_index=1)
    ledger.rounds.give_up(1, 0, reason="its weights are damaged")
    assert last(ledger)[1:] == ("round-failed", "round:1.0", {"why": "its weights are damaged"})


def test_lie_about_masks_and_joining_are_entries(ledger: Ledger) -> None:
    assert ledger.masking.add(0, 0, "a", "lie", b"a key of 3 bytes")
    assert not ledger.masking.add(0, 0, "a", "lie", b"another")
    assert ledger.masking.add(0, 0, "a", "keys", b"x")
    assert last(ledger)[1:] == (
        "device-named",
        "device:a",
        {"what": "masking-lie", "why": "a key of 3 bytes", "round": 0, "attempt": 0},
    )
    profiles = [DeviceProfile(device=name) for name in ("p", "q")]
    ledger.profiles.freeze(profiles)
    ledger.profiles.freeze(profiles)
    joined = [e.actor for e in ledger.audit_log.entries() if e.action == "device-joined"]
    assert joined == ["device:p", "device:q"]


def test_leases_and_requests_are_entries_when_they_change(ledger: Ledger) -> None:
    assert ledger.leases.take("leader", "one", 60.0) == 1
    assert ledger.leases.take("leader", "one", 60.0) == 1
    assert ledger.leases.take("leader", "two", 60.0) is None
    assert ledger.leases.renew("leader", "one", 1, 60.0)
    assert ledger.leases.release("leader", "one", 1)
    assert ledger.leases.take("leader", "two", 60.0) == 2
    ledger.leases.release_all("two")
    assert log_of(ledger)[1:] == [
        ("lease-taken", "lease:leader"),
        ("lease-let-go", "lease:leader"),
        ("lease-taken", "lease:leader"),
        ("lease-let-go", "lease:leader"),
    ]
    taken = list(ledger.audit_log.entries())[3]
    assert taken.actor == "coordinator:two"
    assert taken.values() == {"term": 2, "from": "one", "how": "it was let go"}
    ledger.requests.put("control", "pause")
    ledger.requests.put("control", "pause")
    ledger.requests.put("control", "")
    asked = [e.values() for e in ledger.audit_log.entries() if e.action == "run-asked"]
    assert [(a["before"], a["value"]) for a in asked] == [("", "pause"), ("pause", "")]


def test_device_that_is_named_again_and_again_does_not_fill_the_log(ledger: Ledger) -> None:
    written = [ledger.audit_log.named("a", "over-budget", f"{n} bytes", bytes=n) for n in range(100)]
    assert sum(written) == 7
    assert last(ledger)[3] == {"bytes": 63, "what": "over-budget", "why": "63 bytes", "times": 64}
    assert ledger.audit_log.named("a", "bad-figure", "loss 1e308")
    assert ledger.audit_log.named("b", "over-budget", "1 byte")


def test_details_are_bounded(ledger: Ledger) -> None:
    ledger.audit_log.named("a", "bad-message", "x" * 10_000, more={"list": list(range(5000))})
    details = last(ledger)[3]
    assert details["why"].startswith("x" * 512)
    assert details["why"].endswith("(10000 characters)")
    assert len(ledger.audit_log.head().line()) < 5000
    ledger.audit_log.add("tested", details={str(n): n for n in range(3000)})
    assert last(ledger)[3] == {"cut": "3000 values that are longer than 4096 bytes"}
    assert ledger.audit_log.checked().findings == ()


def test_entry_and_what_it_records_are_there_together_or_not_at_all(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = collecting(ledger, "a")
    before = log_of(ledger)

    def fails(*_: object) -> None:
        raise LedgerError("killed here")

    monkeypatch.setattr("coordinator.ledger.assignments.append", fails)
    with pytest.raises(LedgerError, match="killed here"):
        ledger.assignments.move(entry.assignment_id, "refused", code="no", reason="no")
    found = ledger.assignments.find(entry.assignment_id)
    assert found is not None
    assert found.state == "open"
    monkeypatch.undo()
    monkeypatch.setattr("coordinator.ledger.rounds.encode_json", fails)
    with pytest.raises(LedgerError, match="killed here"):
        ledger.rounds.give_up(0, 0, reason="no")
    assert log_of(ledger) == before


def test_several_writers_make_one_chain(ledger: Ledger, ledger_place: Path | str) -> None:
    def write(name: str) -> None:
        with Ledger.open(ledger_place, federation=FEDERATION) as own:
            own.audit_log.act_as(f"coordinator:{name}")
            for number in range(20):
                own.audit_log.add("tested", details={"number": number})

    writers = [threading.Thread(target=write, args=(name,)) for name in ("one", "two", "three")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = ledger.audit_log.checked()
    assert (found.count, found.findings) == (61, ())
    assert {e.actor for e in ledger.audit_log.entries(after=1)} == {f"coordinator:{n}" for n in ("one", "two", "three")}


@pytest.mark.parametrize(
    ("broken", "findings"),
    [
        ("UPDATE audit_log SET subject = 'device:b' WHERE number = 3", ["entry 3 .named. was changed"]),
        ("UPDATE audit_log SET at_ms = at_ms + 1 WHERE number = 6", ["entry 6 .named. was changed"]),
        ("DELETE FROM audit_log WHERE number = 3", ["entry 3 is missing: entry 4 follows entry 2"]),
        ("DELETE FROM audit_log WHERE number BETWEEN 2 AND 4", ["entries 2 to 4 are missing: entry 5 follows"]),
        ("DELETE FROM audit_log WHERE number = 1", ["entry 1 is missing: entry 2 follows entry 0"]),
        ("DELETE FROM audit_log", ["the audit log is empty"]),
    ],
)
def test_chain_says_which_entry_is_not_as_it_was_written(ledger: Ledger, broken: str, findings: list[str]) -> None:
    for number in range(5):
        ledger.audit_log.add("named", f"device:{number}")
    assert ledger.audit_log.checked().findings == ()
    change(ledger, broken)
    found = ledger.audit_log.checked().findings
    assert len(found) == len(findings)
    for words, expected in zip(found, findings, strict=True):
        assert words.startswith(expected.replace(".named.", "(named)")), words


def test_entries_that_changed_places_are_both_named(ledger: Ledger) -> None:
    for number in range(5):
        ledger.audit_log.add("named", f"device:{number}")
    change(ledger, "UPDATE audit_log SET number = CASE number WHEN 3 THEN -4 ELSE -3 END WHERE number IN (3, 4)")
    change(ledger, "UPDATE audit_log SET number = -number WHERE number < 0")
    found = ledger.audit_log.checked().findings
    assert [words.partition(" (")[0] for words in found] == ["entry 3", "entry 3", "entry 4", "entry 4", "entry 5"]


def test_replaced_entry_is_found_by_the_one_behind_it(ledger: Ledger) -> None:
    for number in range(3):
        ledger.audit_log.add("named", f"device:{number}")
    third = list(ledger.audit_log.entries())[2]
    forged = msgspec.structs.replace(third, subject="device:nobody")
    change(ledger, f"UPDATE audit_log SET subject = 'device:nobody', digest = '{forged.computed()}' WHERE number = 3")
    (found,) = ledger.audit_log.checked().findings
    assert found.startswith("entry 4 (named) was written after another entry 3")
    assert found.endswith("was replaced")


def test_entries_by_time_and_device(ledger: Ledger) -> None:
    collected = collecting(ledger, "a", "b")
    for entry in collected:
        ledger.assignments.move(entry.assignment_id, "refused", code="no", reason="no")
    ledger.audit_log.named("a", "over-budget", "why")
    of_a = [(e.actor[:8], e.subject) for e in ledger.audit_log.entries(device="a")]
    assert of_a == [("device:a", "round:0.0"), ("operator", "device:a")]
    end = ledger.audit_log.head().at_ms
    assert list(ledger.audit_log.entries(since_ms=end + 1)) == []
    assert len(list(ledger.audit_log.entries(after=2))) == 2


@pytest.mark.parametrize("version", [1, 2])
def test_run_of_an_older_release_begins_its_log_when_it_is_opened(version: int, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    old_ledger(path, version)
    with Ledger.open(path) as ledger:
        ledger.led_by("new")
        assert log_of(ledger) == [("log-begun", "run:fed"), ("run-resumed", "run:fed")]
        assert ledger.audit_log.checked().findings == ()


def test_run_of_version_4_begins_its_log_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with Ledger.create(path, federation=FEDERATION, config="", seed=0) as ledger:
        collecting(ledger, "a")
        nonce = ledger.nonce
    back_to_version_5(path)
    with closing(sqlite3.connect(path)) as sql:
        sql.executescript(
            "DROP TABLE audit_log; UPDATE alembic_version SET version_num = 'v4'; PRAGMA user_version = 4;"
        )
    with Ledger.open(path) as ledger:
        (begun,) = ledger.audit_log.entries()
        assert (begun.action, begun.values()["nonce"]) == ("log-begun", nonce)
        ledger.assignments.move(assignment("a").assignment_id, "refused", code="no", reason="no")
        assert ledger.audit_log.checked().findings == ()

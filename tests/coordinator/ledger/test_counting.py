"""Which updates count: once in a whole run, of earlier rounds too, and never when quarantined."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.quarantine import Reliability
from coordinator.ledger.records import Assignment, Contribution
from edge.contracts.errors import LedgerError
from profiles.device import DeviceProfile
from tests.coordinator.ledger.test_rounds import FEDERATION, assignment, collecting, report


@pytest.fixture
def ledger(ledger_place: Path | str) -> Iterator[Ledger]:
    with Ledger.create(ledger_place, federation=FEDERATION, config="", seed=0) as opened:
        yield opened


def record(ledger: Ledger, *entries: Assignment) -> None:
    for entry in entries:
        ledger.updates.record(entry.assignment_id, update_digest=entry.assignment_id, size=8, report=report(entry))


def commit(ledger: Ledger, round_index: int) -> None:
    ledger.blobs.add(f"{round_index}e" * 32, 4)
    ledger.rounds.move(round_index, 0, "committed", model_digest=f"{round_index}e" * 32)


def share(entry: Assignment, weight: float = 1.0) -> Contribution:
    return Contribution(assignment_id=entry.assignment_id, weight=weight)


def test_participants_count_by_their_examples(ledger: Ledger) -> None:
    first, second, third = collecting(ledger, "b", "a", "c")
    record(ledger, first, second, third)
    ledger.rounds.move(0, 0, "aggregating", participants=["b", "a"])
    assert [u.assignment.device for u in ledger.updates.counted(0, 0)] == ["a", "b"]
    assert ledger.updates.weights(0, 0) == (share(second, 10.0), share(first, 10.0))
    assert [u.assignment.device for u in ledger.updates.waiting()] == ["c"]


def test_update_of_an_earlier_round_counts_later_and_once(ledger: Ledger) -> None:
    first, late = collecting(ledger, "a", "b")
    record(ledger, first)
    ledger.rounds.move(0, 0, "aggregating", contributions=[share(first)])
    commit(ledger, 0)
    record(ledger, late)
    (again,) = collecting(ledger, "a", round_index=1)
    record(ledger, again)
    assert [(u.assignment.round, u.assignment.device) for u in ledger.updates.waiting()] == [(0, "b"), (1, "a")]
    with pytest.raises(LedgerError, match="update of a in round 0 was counted in round 0"):
        ledger.rounds.move(1, 0, "aggregating", contributions=[share(first), share(again)])
    assert ledger.updates.counted(1, 0) == ()
    ledger.rounds.move(1, 0, "aggregating", contributions=[share(late, 0.5), share(again)])
    assert ledger.rounds.all()[1].participants == ("a", "b")
    assert [(u.assignment.device, u.assignment.round) for u in ledger.updates.counted(1, 0)] == [("a", 1), ("b", 0)]
    assert ledger.updates.weights(1, 0) == (share(again), share(late, 0.5))
    assert ledger.updates.waiting() == ()


def test_one_device_may_count_twice_with_two_updates(ledger: Ledger) -> None:
    old, other = collecting(ledger, "b", "a")
    record(ledger, old, other)
    ledger.rounds.move(0, 0, "aggregating", contributions=[share(other)])
    commit(ledger, 0)
    (new,) = collecting(ledger, "b", round_index=1)
    record(ledger, new)
    ledger.rounds.move(1, 0, "aggregating", contributions=[share(new), share(old)])
    assert ledger.rounds.all()[1].participants == ("b", "b")
    assert [u.assignment.round for u in ledger.updates.counted(1, 0)] == [0, 1]
    commit(ledger, 1)
    assert ledger.audit.findings() == []


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0])
def test_weight_that_is_none_is_refused(weight: float, ledger: Ledger) -> None:
    (entry,) = collecting(ledger, "a")
    record(ledger, entry)
    with pytest.raises(LedgerError, match=f"weighs {weight}; choose again"):
        ledger.rounds.move(0, 0, "aggregating", contributions=[share(entry, weight)])
    assert ledger.rounds.all()[0].state == "collecting"


def test_nothing_to_count_is_refused(ledger: Ledger) -> None:
    (entry,) = collecting(ledger, "a")
    with pytest.raises(LedgerError, match="no update to aggregate"):
        ledger.rounds.move(0, 0, "aggregating", contributions=[])
    with pytest.raises(LedgerError, match="has no update; collect first"):
        ledger.rounds.move(0, 0, "aggregating", contributions=[share(entry)])
    record(ledger, entry)
    with pytest.raises(LedgerError, match=r"(?i)unique"):
        ledger.rounds.move(0, 0, "aggregating", contributions=[share(entry), share(entry)])
    assert ledger.updates.counted(0, 0) == ()


@pytest.mark.slow
def test_hundreds_of_contributions_are_one_transaction(ledger: Ledger) -> None:
    entries = collecting(ledger, *(f"d{number:04}" for number in range(520)))
    record(ledger, *entries)
    ledger.rounds.move(0, 0, "aggregating", contributions=[share(entry) for entry in reversed(entries)])
    assert ledger.rounds.all()[0].participants == tuple(entry.device for entry in entries)
    assert len(ledger.updates.counted(0, 0)) == 520


def test_quarantined_update_counts_in_no_round(ledger: Ledger) -> None:
    bad, good = collecting(ledger, "bad", "good")
    record(ledger, bad, good)
    reliability = Reliability(device="bad", score=0.2, quarantined=1, barred_until=5, changed_at=7.0)
    evidence = {"norm": 1e30, "median": 1.5}
    assert ledger.quarantine.add(bad.assignment_id, code="norm", evidence=evidence)
    ledger.reliabilities.put([reliability])
    assert not ledger.quarantine.add(bad.assignment_id, code="other", evidence={})
    (kept,) = ledger.quarantine.all()
    assert (kept.device, kept.round, kept.code, kept.evidence) == ("bad", 0, "norm", evidence)
    assert ledger.reliabilities.all() == {"bad": reliability}
    assert [u.assignment.device for u in ledger.updates.waiting()] == ["good"]
    with pytest.raises(LedgerError, match=r"update of bad in round 0 is quarantined \(norm\)"):
        ledger.rounds.move(0, 0, "aggregating", participants=["bad", "good"])
    ledger.rounds.move(0, 0, "aggregating", participants=["good"])
    with pytest.raises(LedgerError, match="update of good in round 0 was counted in round 0"):
        ledger.quarantine.add(good.assignment_id, code="norm", evidence={})
    with pytest.raises(LedgerError, match="has no update to quarantine"):
        ledger.quarantine.add("0" * 64, code="norm", evidence={})


def test_standings_are_replaced_one_device_at_a_time(ledger: Ledger) -> None:
    ledger.reliabilities.put([Reliability(device="b", score=1.0), Reliability(device="a", score=0.5, accepted=3)])
    ledger.reliabilities.put([Reliability(device="b", score=0.25, rejected=1, changed_at=2.0)])
    ledger.reliabilities.put([])
    assert [(s.device, s.score, s.accepted, s.rejected) for s in ledger.reliabilities.all().values()] == [
        ("a", 0.5, 3, 0),
        ("b", 0.25, 0, 1),
    ]


def test_abandoned_attempt_leaves_nothing_to_count(ledger: Ledger) -> None:
    (entry, _) = collecting(ledger, "a", "b")
    record(ledger, entry)
    ledger.rounds.move(0, 0, "abandoned")
    assert ledger.updates.waiting() == ()
    assert ledger.blobs.release(1) == (entry.assignment_id,)


def test_release_keeps_what_an_older_model_is_made_of(ledger: Ledger) -> None:
    def played(round_index: int, *devices: str) -> tuple[Assignment, ...]:
        entries = collecting(ledger, *devices, round_index=round_index)
        record(ledger, entries[0])
        ledger.rounds.move(round_index, 0, "aggregating", contributions=[share(entries[0])])
        commit(ledger, round_index)
        return entries

    (first,) = played(0, "a")
    second, slow = played(1, "a", "b")  # the slow one works on the model after round 0
    released = ledger.blobs.release(1)
    (third,) = played(2, "a")
    released += ledger.blobs.release(2)
    (fourth,) = played(3, "a")
    released += ledger.blobs.release(3)
    assert first.assignment_id not in released
    assert {second.assignment_id, third.assignment_id} <= set(released)
    record(ledger, slow)
    (fifth,) = collecting(ledger, "c", round_index=4)
    record(ledger, fifth)
    ledger.rounds.move(4, 0, "aggregating", contributions=[share(slow), share(fifth)])
    commit(ledger, 4)
    assert first.assignment_id not in ledger.blobs.release(4)
    played(5, "a")
    assert first.assignment_id in ledger.blobs.release(5)
    assert set(ledger.blobs.sizes()) & {slow.assignment_id, fourth.assignment_id} == set()


def test_release_keeps_what_waits_and_what_is_unanswered(ledger: Ledger) -> None:
    counted, waiting, slow = collecting(ledger, "a", "b", "c")
    ledger.blobs.add(counted.weights_digest, 4)
    record(ledger, counted, waiting)
    ledger.rounds.move(0, 0, "aggregating", participants=["a"])
    commit(ledger, 0)
    assert ledger.blobs.release(1) == (counted.assignment_id,)
    assert {counted.weights_digest, waiting.assignment_id} <= ledger.blobs.sizes().keys()
    assert ledger.blobs.release(1) == ()
    (late,) = collecting(ledger, "a", round_index=1)
    record(ledger, late)
    ledger.rounds.move(1, 0, "aggregating", contributions=[share(waiting)])
    assert ledger.blobs.release(1) == ()
    commit(ledger, 1)
    record(ledger, slow)
    # The slow one waits, with its weights and the model they were cut from.
    assert ledger.blobs.release(2) == (waiting.assignment_id,)
    assert ledger.audit.findings() == []
    with Ledger.open(ledger.path, federation=FEDERATION) as restarted:
        assert restarted.blobs.release(2) == ()


def test_work_is_added_while_an_attempt_takes_it(ledger: Ledger) -> None:
    (first,) = collecting(ledger, "b")
    ledger.rounds.extend(0, 0, [assignment("a"), assignment("c")])
    ledger.rounds.extend(0, 0, [])
    assert [a.device for a in ledger.assignments.of_attempt(0, 0)] == ["a", "b", "c"]
    with pytest.raises(LedgerError, match=r"e is open in round 1\.0, an open one of round 0\.0 expected"):
        ledger.rounds.extend(0, 0, [assignment("e", round_index=1)])
    with pytest.raises(LedgerError, match="round 1, attempt 0 is not in the ledger"):
        ledger.rounds.extend(1, 0, [assignment("e", round_index=1)])
    with pytest.raises(LedgerError, match=r"(?i)unique"):
        ledger.rounds.extend(0, 0, [assignment("d"), assignment("a")])
    assert ledger.assignments.open_count(0, 0) == 3
    record(ledger, first)
    ledger.rounds.move(0, 0, "aggregating", participants=["b"])
    with pytest.raises(LedgerError, match="round 0, attempt 0 is aggregating and takes no more work"):
        ledger.rounds.extend(0, 0, [assignment("d")])


def test_open_work_of_devices_over_all_rounds(ledger: Ledger) -> None:
    collecting(ledger, "a", "b", "c")
    ledger.assignments.move(assignment("b").assignment_id, "accepted")
    ledger.assignments.move(assignment("c").assignment_id, "refused", code="device-refused", reason="nul \0 in it")
    record(ledger, assignment("a"))
    ledger.rounds.move(0, 0, "aggregating", participants=["a"])
    commit(ledger, 0)
    collecting(ledger, "a", "b2", round_index=1)
    assert [(a.device, a.round) for a in ledger.assignments.open()] == [("b", 0), ("a", 1), ("b2", 1)]
    found = ledger.assignments.open_of("a")
    assert found is not None
    assert (found.round, found.state) == (1, "open")
    assert ledger.assignments.open_of("c") is None
    assert ledger.assignments.open_of("nobody") is None
    assert (
        ledger.assignments.open_count(0, 0),
        ledger.assignments.open_count(1, 0),
        ledger.assignments.open_count(2, 0),
    ) == (1, 2, 0)
    assert ledger.updates.devices(0, 0) == ("a",)
    assert ledger.updates.devices(1, 0) == ()


def test_newest_profile_counts_and_the_ones_before_are_kept(ledger: Ledger) -> None:
    budgets = [10, 20, 20, 30]
    changed = [ledger.profiles.replace(DeviceProfile(device="a", budget_bytes=budget)) for budget in budgets]
    assert changed == [True, True, False, True]
    assert not ledger.profiles.freeze([DeviceProfile(device="a", budget_bytes=99)])
    assert ledger.profiles.of("a").budget_bytes == 30
    assert [p.budget_bytes for p in ledger.profiles.earlier("a")] == [10, 20]
    assert ledger.profiles.earlier("b") == ()


def test_last_update_of_a_device_that_counts_is_one_of_a_committed_round(ledger: Ledger) -> None:
    """Neither one that no round counted, nor one of a round that is not committed."""
    first, other = collecting(ledger, "a", "b")
    record(ledger, first, other)
    ledger.rounds.move(0, 0, "aggregating", participants=["a"])
    assert ledger.updates.last_counted() == {}
    commit(ledger, 0)
    second, never = collecting(ledger, "a", "b", round_index=1)
    record(ledger, second, never)
    ledger.rounds.move(1, 0, "aggregating", participants=["a"])
    assert ledger.updates.last_counted() == {"a": first.assignment_id}
    commit(ledger, 1)
    assert ledger.updates.last_counted() == {"a": second.assignment_id}


class CountedReads:
    """How often a ledger's file was asked for rows, while this stands in for its way to do it."""

    def __init__(self, ledger: Ledger, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._all = ledger._file.all
        patch.setattr(ledger._file, "all", self._counted)

    def _counted(self, query: Any, values: Any = None) -> list[Any]:
        self.count += 1
        return self._all(query, values)


def test_devices_without_work_are_known_to_the_coordinator_without_a_look(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.led_by("first")
    (entry,) = collecting(ledger, "a")
    reads = CountedReads(ledger, monkeypatch)
    assert [ledger.assignments.open_of(f"idle-{number}") for number in range(100)] == [None] * 100
    assert reads.count == 1
    assert ledger.assignments.open_of("a") == entry


def test_work_that_is_handed_out_later_is_found_by_the_coordinator(ledger: Ledger) -> None:
    ledger.led_by("first")
    assert ledger.assignments.open_of("a") is None
    (entry,) = collecting(ledger, "a")
    assert ledger.assignments.open_of("a") == entry
    assert ledger.assignments.open_of("b") is None
    ledger.rounds.extend(0, 0, [assignment("b")])
    assert ledger.assignments.open_of("b") == assignment("b")


def test_work_of_an_earlier_coordinator_is_found_by_the_next(ledger: Ledger) -> None:
    ledger.led_by("first")
    (entry,) = collecting(ledger, "a")
    with Ledger.open(ledger.path, federation=FEDERATION) as later:
        later.led_by("second")
        assert later.assignments.open_of("a") == entry


def test_who_does_not_lead_looks_every_time(ledger: Ledger) -> None:
    with Ledger.open(ledger.path, federation=FEDERATION) as reader:
        assert reader.assignments.open_of("a") is None
        ledger.led_by("first")
        (entry,) = collecting(ledger, "a")
        assert reader.assignments.open_of("a") == entry

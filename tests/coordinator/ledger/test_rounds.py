"""The ledger: what is counted, which moves are legal, and what a second process finds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.ledger.database import statement
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import ROUND_MOVES, Assignment, Measurement, RoundState
from edge.contracts.errors import LedgerError
from edge.contracts.plan import assignment_id
from edge.contracts.report import TrainReport
from profiles.device import DeviceProfile
from tests.builders import train_report

FEDERATION = "fed"


@pytest.fixture
def ledger(ledger_place: Path | str) -> Iterator[Ledger]:
    with Ledger.create(ledger_place, federation=FEDERATION, config="x = 1\n", seed=7) as opened:
        yield opened


def assignment(device: str, round_index: int = 0, attempt: int = 0) -> Assignment:
    return Assignment(
        assignment_id=assignment_id(FEDERATION, round_index, device, attempt),
        round=round_index,
        attempt=attempt,
        device=device,
        level="rank 1/2",
        cut={"fc1": {"factor": {"form": "linear", "components": [0, 1]}}},
        artifact_digest="a" * 64,
        weights_digest=f"{round_index:x}" * 64,
        order=b"order",
    )


def report(entry: Assignment, loss: float = 1.5) -> TrainReport:
    return train_report(entry.assignment_id, entry.device, entry.round, loss=loss)


def collecting(ledger: Ledger, *devices: str, round_index: int = 0, attempt: int = 0) -> list[Assignment]:
    entries = [assignment(device, round_index, attempt) for device in devices]
    ledger.rounds.plan(round_index, attempt, deadline_s=60.0, assignments=entries)
    ledger.rounds.move(round_index, attempt, "published")
    ledger.rounds.move(round_index, attempt, "collecting")
    return entries


@pytest.mark.slow
def test_create_twice_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="a run here already"):
        Ledger.create(ledger.path, federation=FEDERATION, config="", seed=0)
    assert ledger.federation().id == FEDERATION


def test_open_missing_file_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no ledger here"):
        Ledger.open(tmp_path / "none.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_federation_moves_forward_only(ledger: Ledger) -> None:
    assert ledger.federation().state == "new"
    ledger.move_federation("running")
    ledger.move_federation("finished")
    with pytest.raises(LedgerError, match="is finished and cannot become running"):
        ledger.move_federation("running")
    assert ledger.federation().state == "finished"


def test_profile_snapshot_keeps_the_first(ledger: Ledger) -> None:
    assert ledger.profiles.freeze([DeviceProfile(device="pi-02", budget_bytes=10)])
    assert ledger.profiles.freeze([DeviceProfile(device="pi-01", budget_bytes=20)])
    assert not ledger.profiles.freeze([DeviceProfile(device="pi-02", budget_bytes=99)])
    assert {name: p.budget_bytes for name, p in ledger.profiles.all().items()} == {"pi-01": 20, "pi-02": 10}


def test_plan_round_with_a_foreign_assignment_writes_nothing(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match=r"b is open in round 1\.0"):
        ledger.rounds.plan(0, 0, deadline_s=1.0, assignments=[assignment("a"), assignment("b", round_index=1)])
    assert ledger.rounds.all() == ()
    assert ledger.assignments.find(assignment("a").assignment_id) is None


def test_plan_round_while_one_is_open_is_refused(ledger: Ledger) -> None:
    collecting(ledger, "a")
    with pytest.raises(LedgerError, match="round 0, attempt 0 is collecting"):
        ledger.rounds.plan(1, 0, deadline_s=1.0, assignments=[])
    assert len(ledger.rounds.all()) == 1


@pytest.mark.parametrize("start", sorted(ROUND_MOVES))
@pytest.mark.parametrize("to", sorted(ROUND_MOVES))
def test_every_round_move_is_legal_or_changes_nothing(ledger: Ledger, start: str, to: RoundState) -> None:
    (entry,) = collecting(ledger, "a")
    ledger.updates.record(entry.assignment_id, update_digest="d" * 64, size=8, report=report(entry))
    with ledger._file.transaction() as sql:
        sql.execute(statement("UPDATE rounds SET state = :start"), {"start": start})
    before = ledger.rounds.all()
    if to in ROUND_MOVES[start]:
        ledger.rounds.move(0, 0, to, participants=["a"], model_digest="d" * 64)
        assert ledger.rounds.all()[0].state == to
    else:
        with pytest.raises(LedgerError, match=f"round 0, attempt 0 is {start} and cannot become {to}"):
            ledger.rounds.move(0, 0, to, participants=["a"], model_digest="d" * 64)
        assert ledger.rounds.all() == before


def test_move_of_an_unknown_round_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="round 3, attempt 1 is not in the ledger"):
        ledger.rounds.move(3, 1, "published")


def test_aggregating_needs_an_update_of_each_participant(ledger: Ledger) -> None:
    first, _ = collecting(ledger, "a", "b")
    ledger.updates.record(first.assignment_id, update_digest="d" * 64, size=8, report=report(first))
    with pytest.raises(LedgerError, match=r"2 participants, no update from \['b'\]"):
        ledger.rounds.move(0, 0, "aggregating", participants=["b", "a"])
    assert ledger.rounds.all()[0].state == "collecting"
    ledger.rounds.move(0, 0, "aggregating", participants=["a"])
    assert ledger.rounds.all()[0].participants == ("a",)


def test_commit_needs_a_known_model_blob(ledger: Ledger) -> None:
    (entry,) = collecting(ledger, "a")
    ledger.updates.record(entry.assignment_id, update_digest="d" * 64, size=8, report=report(entry))
    ledger.rounds.move(0, 0, "aggregating", participants=["a"])
    with pytest.raises(LedgerError, match=r"model blob 'eeeeeeeeeeee' has no row"):
        ledger.rounds.move(0, 0, "committed", model_digest="e" * 64)
    ledger.blobs.add("e" * 64, 100)
    ledger.rounds.move(0, 0, "committed", model_digest="e" * 64, metrics={"accuracy": 0.5})
    committed = ledger.rounds.last_committed()
    assert committed is not None
    assert (committed.model_digest, committed.metrics) == ("e" * 64, {"accuracy": 0.5})
    assert ledger.rounds.open() is None


def test_update_counts_once(ledger: Ledger) -> None:
    (entry,) = collecting(ledger, "a")
    assert ledger.updates.record(entry.assignment_id, update_digest="d" * 64, size=8, report=report(entry))
    assert not ledger.updates.record(
        entry.assignment_id, update_digest="f" * 64, size=9, report=report(entry, loss=9.0)
    )
    (update,) = ledger.updates.of_attempt(0, 0)
    assert (update.update_digest, update.report.loss, update.assignment.state) == ("d" * 64, 1.5, "reported")
    assert ledger.blobs.sizes() == {"d" * 64: 8}


def test_update_counts_once_from_many_threads(ledger: Ledger) -> None:
    (entry,) = collecting(ledger, "a")
    counted: list[bool] = []

    def send() -> None:
        counted.append(ledger.updates.record(entry.assignment_id, update_digest="d" * 64, size=8, report=report(entry)))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(counted) == [False] * 7 + [True]
    assert len(ledger.updates.of_attempt(0, 0)) == 1


def test_update_of_an_expired_assignment_is_refused_and_leaves_no_blob(ledger: Ledger) -> None:
    (entry,) = collecting(ledger, "a")
    ledger.assignments.move(entry.assignment_id, "expired", code="deadline-expired", reason="60 s")
    with pytest.raises(LedgerError, match="is expired and cannot become reported"):
        ledger.updates.record(entry.assignment_id, update_digest="d" * 64, size=8, report=report(entry))
    assert ledger.updates.of_attempt(0, 0) == ()
    assert ledger.blobs.sizes() == {}


def test_update_of_an_unknown_assignment_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="'000000000000' is not of this run"):
        ledger.updates.record("0" * 64, update_digest="d" * 64, size=8, report=report(assignment("a")))


def test_updates_come_in_device_order_not_arrival_order(ledger: Ledger) -> None:
    entries = collecting(ledger, "c", "a", "b")
    for entry in entries:
        ledger.updates.record(entry.assignment_id, update_digest=entry.device * 64, size=1, report=report(entry))
    assert [u.assignment.device for u in ledger.updates.of_attempt(0, 0)] == ["a", "b", "c"]
    assert [a.device for a in ledger.assignments.of_attempt(0, 0)] == ["a", "b", "c"]


def test_assignment_moves_and_filters(ledger: Ledger) -> None:
    first, second = collecting(ledger, "a", "b")
    assert ledger.assignments.move(first.assignment_id, "accepted")
    assert not ledger.assignments.move(first.assignment_id, "accepted")
    assert ledger.assignments.move(second.assignment_id, "refused", code="device-refused", reason="too big")
    with pytest.raises(LedgerError, match="is refused and cannot become accepted"):
        ledger.assignments.move(second.assignment_id, "accepted")
    with pytest.raises(LedgerError, match="only a recorded update"):
        ledger.assignments.move(first.assignment_id, "reported")
    (refused,) = ledger.assignments.of_attempt(0, 0, "refused")
    assert (refused.device, refused.code, refused.reason) == ("b", "device-refused", "too big")
    assert refused.cut == second.cut
    assert refused.order == b"order"


def test_second_attempt_follows_an_abandoned_one(ledger: Ledger) -> None:
    collecting(ledger, "a")
    ledger.rounds.move(0, 0, "abandoned")
    collecting(ledger, "a", attempt=1)
    assert [(r.round, r.attempt, r.state) for r in ledger.rounds.all()] == [(0, 0, "abandoned"), (0, 1, "collecting")]
    still = ledger.rounds.open()
    assert still is not None
    assert still.attempt == 1


def test_deadline_survives_reopening(ledger: Ledger) -> None:
    collecting(ledger, "a")
    ledger.rounds.set_deadline(0, 0, 12.5)
    ledger.close()
    with Ledger.open(ledger.path, federation=FEDERATION) as again:
        still = again.rounds.open()
        assert still is not None
        assert still.deadline_s == 12.5


def test_release_blobs_keeps_what_the_next_round_starts_from(ledger: Ledger) -> None:
    for round_index in (0, 1):
        (entry,) = collecting(ledger, "a", round_index=round_index)
        ledger.blobs.add(entry.weights_digest, 4)
        ledger.updates.record(entry.assignment_id, update_digest=f"d{round_index}" * 32, size=8, report=report(entry))
        ledger.rounds.move(round_index, 0, "aggregating", participants=["a"])
        ledger.blobs.add(f"e{round_index}" * 32, 2)
        ledger.rounds.move(round_index, 0, "committed", model_digest=f"e{round_index}" * 32)
    ledger.blobs.add("a" * 64, 1)
    ledger.artifacts.add("key", "a" * 64)

    assert ledger.blobs.release(1) == ("0" * 64, "d0" * 32)
    assert set(ledger.blobs.sizes()) == {"1" * 64, "d1" * 32, "e0" * 32, "e1" * 32, "a" * 64}
    assert ledger.blobs.release(2) == ("1" * 64, "d1" * 32, "e0" * 32)
    assert set(ledger.blobs.sizes()) == {"e1" * 32, "a" * 64}


def test_artifact_needs_its_blob_and_one_manifest_per_key(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match=r"(?i)foreign key"):
        ledger.artifacts.add("key", "a" * 64)
    ledger.blobs.add("a" * 64, 1)
    ledger.artifacts.add("key", "a" * 64)
    ledger.artifacts.add("key", "a" * 64)
    assert ledger.artifacts.find("key") == "a" * 64
    assert ledger.artifacts.find("other") is None
    ledger.blobs.add("b" * 64, 1)
    with pytest.raises(LedgerError, match="not deterministic"):
        ledger.artifacts.add("key", "b" * 64)


def test_measurement_keeps_the_largest_peak_and_the_latest_time(ledger: Ledger) -> None:
    for peak, step_ms in ((100, 5.0), (90, 4.0)):
        ledger.measurements.add(
            Measurement(
                device="a",
                export_key="k",
                batch=32,
                predicted_peak_bytes=95,
                measured_peak_bytes=peak,
                step_ms=step_ms,
            )
        )
    (kept,) = ledger.measurements.all()
    assert (kept.measured_peak_bytes, kept.step_ms, kept.predicted_peak_bytes) == (100, 4.0, 95)


def test_two_runs_of_one_name_have_other_ids(tmp_path: Path) -> None:
    ids = set()
    for name in ("first", "second"):
        with Ledger.create(tmp_path / name, federation=FEDERATION, config="", seed=0) as ledger:
            nonce = ledger.nonce
            ids.add(assignment_id(FEDERATION, 0, "pi-1", 0, nonce))
        with Ledger.open(tmp_path / name) as ledger:
            assert ledger.nonce == nonce
    assert len(ids) == 2

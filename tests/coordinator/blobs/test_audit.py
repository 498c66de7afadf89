"""What a repair may do to a ledger, on SQLite and PostgreSQL: nothing lost that is whole, nothing counted twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.blobs.audit import blob_faults, needs_of, repair
from coordinator.ledger.records import Contribution
from edge.contracts.errors import LedgerError
from edge.contracts.plan import assignment_id
from tests.coordinator.stored_run import StoredRun


@pytest.fixture
def run(tmp_path: Path, ledger_place: Path | str) -> Iterator[StoredRun]:
    stored = StoredRun(tmp_path / "run", ledger_place)
    yield stored
    stored.ledger.close()


def test_every_blob_of_a_run_is_for_something(run: StoredRun) -> None:
    needs = needs_of(run.ledger, run.blobs)
    words = {name: needs.of(digest) for name, digest in run.digests.items()}
    assert words["model 0"] == "the current model"
    assert words["update pi-1 0"] == "update of pi-1, round 1"
    assert words["update pi-1 1"] == "update of pi-1, round 2"
    assert words["weights 1"] == "weights of pi-2, round 2"
    assert words["weights 0"] == "kept for later rounds"
    assert {words[name] for name in words if name.startswith("graph")} == {"artifact of pi-2, round 2"}
    assert blob_faults(run.ledger, run.blobs, deep=True) == []


def test_attempt_that_is_given_up_counts_nothing_and_can_follow(run: StoredRun) -> None:
    run.ledger.rounds.move(1, 0, "aggregating", participants=["pi-1"])
    run.ledger.rounds.give_up(1, 0, reason="gone")
    assert run.ledger.rounds.open() is None
    assert run.ledger.updates.counted(1, 0) == ()
    assert run.ledger.updates.waiting() == ()
    assert len(run.ledger.updates.counted(0, 0)) == 2
    for attempt in (0, 7):
        with pytest.raises(LedgerError, match="it is not open"):
            run.ledger.rounds.give_up(1, attempt, reason="gone")
    with pytest.raises(LedgerError, match="round 0, attempt 0 is committed"):
        run.ledger.rounds.give_up(0, 0, reason="gone")


def test_update_of_an_earlier_attempt_waits_again(run: StoredRun) -> None:
    """Buffered rounds count updates of earlier ones: those go back to where they were."""
    earlier, own = (assignment_id("small", r, "pi-1", 0) for r in (1, 2))
    run.report("pi-2", 1)
    other = Contribution(assignment_id=assignment_id("small", 1, "pi-2", 0), weight=1.0)
    run.ledger.rounds.move(1, 0, "aggregating", contributions=[other])
    run.put("model 1", b"model 1")
    run.ledger.rounds.move(1, 0, "committed", model_digest=run.digests["model 1"])
    run.open_round(2)
    assert [u.assignment.assignment_id for u in run.ledger.updates.waiting()] == [earlier, own]
    counted = [Contribution(assignment_id=key, weight=1.0) for key in (earlier, own)]
    run.ledger.rounds.move(2, 0, "aggregating", contributions=counted)
    assert run.ledger.updates.waiting() == ()
    run.ledger.rounds.give_up(2, 0, reason="gone")
    assert [u.assignment.assignment_id for u in run.ledger.updates.waiting()] == [earlier]


def test_repair_is_repeatable(run: StoredRun) -> None:
    digest = run.damage("update pi-1 1")
    faults = blob_faults(run.ledger, run.blobs, deep=True)
    assert [fault.subject for fault in faults] == [digest]
    assert len(repair(run.ledger, run.blobs, faults)) == 2
    assert repair(run.ledger, run.blobs, faults) == [
        f"blob {digest[:12]} set aside as {run.blobs.root}/damaged/{digest}"
    ]
    assert blob_faults(run.ledger, run.blobs, deep=True) == []

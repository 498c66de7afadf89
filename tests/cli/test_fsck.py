"""``apportion fsck``: a table for people, one line for programs, and a repair that a second look finds clean."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.cli.run_directory import lock_run
from coordinator.ledger.ledger import Ledger
from edge.contracts.plan import assignment_id
from tests.cli.conftest import Command
from tests.contracts.samples import MANIFEST
from tests.coordinator.stored_run import StoredRun


@pytest.fixture
def run(tmp_path: Path) -> Iterator[StoredRun]:
    stored = StoredRun(tmp_path / "run")
    yield stored
    stored.ledger.close()


def test_sound_run_is_clean(run: StoredRun, command: Command) -> None:
    outcome = command("fsck", run.folder, "--deep", "--json")
    assert outcome.status == 0
    line = outcome.line
    assert (line["schema"], line["ok"], line["live"], line["deep"]) == ("apportion.fsck/1", True, False, True)
    assert (line["state"], line["findings"], line["repaired"]) == ("running", [], [])
    assert line["blobs"]["count"] == len(run.digests)
    assert line["garbage"] == {"shared": False, "count": 0, "bytes": 0, "young": 0, "collected": False}
    assert command("fsck", run.folder).out.splitlines()[-1] == "clean"


def test_no_run_is_exit_2(tmp_path: Path, command: Command) -> None:
    outcome = command("fsck", tmp_path, "--json")
    assert outcome.status == 2
    assert "holds no run" in outcome.error["message"]


def test_one_changed_byte_is_found_by_reading_alone(run: StoredRun, command: Command) -> None:
    digest = run.damage("update pi-1 1")
    assert command("fsck", run.folder).status == 0
    outcome = command("fsck", run.folder, "--deep", "--json")
    assert outcome.status == 1
    assert outcome.line["findings"] == [
        {
            "kind": "blob",
            "subject": digest,
            "detail": "update of pi-1, round 2: other bytes than were stored",
            "step": "--repair sets it aside and gives the attempt up; resume repeats the round",
        }
    ]
    assert outcome.error["code"] == "findings"
    shown = command("fsck", run.folder, "--deep").out
    assert digest[:12] in shown
    assert shown.splitlines()[-1] == "1 finding"


def test_missing_blob_and_one_of_another_size_are_found_at_once(run: StoredRun, command: Command) -> None:
    run.blobs.path(run.digests["weights 1"]).unlink()
    run.blobs.path(run.digests["manifest"]).write_bytes(b"{")
    found = {f["subject"]: f["detail"] for f in command("fsck", run.folder, "--json").line["findings"]}
    assert found[run.digests["weights 1"]] == "weights of pi-2, round 2: missing"
    assert found[run.digests["manifest"]].startswith("artifact of pi-2, round 2: 1 bytes, ")


def test_repair_sets_the_blob_aside_and_gives_the_attempt_up(run: StoredRun, command: Command) -> None:
    digest = run.damage("update pi-1 1")
    outcome = command("fsck", run.folder, "--deep", "--repair", "--json")
    assert outcome.status == 0
    assert len(outcome.line["repaired"]) == 2
    assert (run.blobs.root / "damaged" / digest).read_bytes().endswith(b"?")
    with Ledger.open(run.folder / "ledger.sqlite") as ledger:
        assert [(r.round, r.attempt, r.state) for r in ledger.rounds.all()] == [
            (0, 0, "committed"),
            (1, 0, "abandoned"),
        ]
        assert digest not in ledger.blobs.sizes()
        late = ledger.assignments.find(assignment_id("small", 1, "pi-2", 0))
        assert late is not None
        assert (late.state, late.code) == ("expired", "store-damaged")
        assert ledger.updates.waiting() == ()
    assert command("fsck", run.folder, "--deep", "--repair", "--json").line["repaired"] == []


def test_repair_during_aggregation_counts_nothing(run: StoredRun, command: Command) -> None:
    run.ledger.rounds.move(1, 0, "aggregating", participants=["pi-1"])
    run.damage("update pi-1 1")
    assert command("fsck", run.folder, "--deep", "--repair").status == 0
    with Ledger.open(run.folder / "ledger.sqlite") as ledger:
        assert ledger.rounds.open() is None
        assert ledger.updates.counted(1, 0) == ()
        assert len(ledger.updates.counted(0, 0)) == 2


def test_damaged_graph_is_forgotten_so_that_it_is_exported_again(run: StoredRun, command: Command) -> None:
    run.damage("manifest")
    assert command("fsck", run.folder, "--deep", "--repair").status == 0
    with Ledger.open(run.folder / "ledger.sqlite") as ledger:
        assert ledger.artifacts.find(MANIFEST.export_key) is None
        assert run.digests["manifest"] not in ledger.blobs.sizes()


def test_current_model_is_left_to_resume_or_a_backup(run: StoredRun, command: Command) -> None:
    run.damage("model 0")
    outcome = command("fsck", run.folder, "--deep", "--repair", "--json")
    assert outcome.status == 1
    (finding,) = outcome.line["findings"]
    assert finding["detail"] == "the current model: other bytes than were stored"
    assert finding["step"] == "resume makes it again from the round before"
    run.damage("update pi-2 0")
    (step,) = [
        f["step"] for f in command("fsck", run.folder, "--deep", "--json").line["findings"] if "model" in f["detail"]
    ]
    assert step == "put it back from a backup: it cannot be made again without update of pi-2, round 1"


def test_garbage_is_listed_and_deleted_when_asked(run: StoredRun, command: Command) -> None:
    old, young = run.blobs.put(b"old"), run.blobs.put(b"young")
    os.utime(run.blobs.path(old), (time.time() - 7200,) * 2)
    listed = command("fsck", run.folder, "--json")
    assert listed.status == 0
    assert listed.line["garbage"] == {"shared": False, "count": 1, "bytes": 3, "young": 1, "collected": False}
    assert old in run.blobs
    assert "1 files, 0.0 MB, deleted; 1 more are too young to tell" in command("fsck", run.folder, "--gc").out
    assert (old in run.blobs, young in run.blobs) == (False, True)


def test_beside_a_running_coordinator_it_looks_and_does_not_repair(run: StoredRun, command: Command) -> None:
    run.damage("update pi-1 1")
    with lock_run(run.folder):
        outcome = command("fsck", run.folder, "--deep", "--json")
        assert (outcome.status, outcome.line["live"]) == (1, True)
        assert command("fsck", run.folder, "--deep").out.startswith("a coordinator is running here")
        refused = command("fsck", run.folder, "--deep", "--repair", "--json")
        assert refused.status == 1
        assert "another coordinator runs here" in refused.error["message"]
    with Ledger.open(run.folder / "ledger.sqlite") as ledger:
        assert ledger.rounds.open() is not None


def test_lost_files_of_the_run_directory_are_named(run: StoredRun, command: Command) -> None:
    (run.folder / "config.toml").unlink()
    (run.folder / "metrics.jsonl").unlink()
    run.ledger.move_federation("finished")
    outcome = command("fsck", run.folder, "--json")
    assert outcome.status == 1
    found = {f["subject"]: f["step"] for f in outcome.line["findings"]}
    assert found["config.toml"] == found["summary.json"] == "resume writes it again"
    assert "its lines are lost" in found["metrics.jsonl"]
    assert {f["kind"] for f in outcome.line["findings"]} == {"run-dir"}

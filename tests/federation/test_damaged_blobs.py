"""Bytes that rot on the disk between two starts: found before they are used, and the run ends with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.cli.assembly import resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from edge.__main__ import main
from edge.contracts.errors import ArtifactCorrupt
from tests.federation.small_run import DEVICES, ROUNDS, config_text, crash

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    start_run(load_config_text(config_text(join_timeout_s=240.0)), run_dir, RunOptions(quiet=True))
    return final_bytes(run_dir)


def final_bytes(run_dir: Path) -> bytes:
    return (run_dir / "checkpoints" / "final.safetensors").read_bytes()


def flip(run_dir: Path, digest: str) -> None:
    """One bit of a blob, in its last byte: an exponent or a mantissa, not the header."""
    path = run_dir / "blobs" / digest[:2] / digest
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_rotten_update_stops_the_run_and_after_fsck_the_round_is_repeated(undisturbed: bytes, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    crash(run_dir, "aggregating", 2, text=config_text(join_timeout_s=240.0))
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        attempt = ledger.rounds.open()
        assert attempt is not None
        damaged = ledger.updates.of_attempt(attempt.round, attempt.attempt)[1]
    flip(run_dir, damaged.update_digest)
    with pytest.raises(ArtifactCorrupt, match=f"device {damaged.assignment.device}, round 1: blob") as stopped:
        resume_run(run_dir, RunOptions(quiet=True))
    assert "fsck RUN_DIR --deep --repair" in stopped.value.hint
    assert main(["fsck", str(run_dir)]) == 0, "one bit is not seen without --deep"
    assert main(["fsck", str(run_dir), "--deep"]) == 1
    assert main(["fsck", str(run_dir), "--deep", "--repair"]) == 0
    assert (run_dir / "blobs" / "damaged" / damaged.update_digest).is_file()
    resume_run(run_dir, RunOptions(quiet=True))
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        assert [(r.round, r.attempt, r.state) for r in ledger.rounds.all()] == [
            (0, 0, "committed"),
            (1, 0, "abandoned"),
            (1, 1, "committed"),
            (2, 0, "committed"),
        ]
        counted = [len(ledger.updates.counted(r.round, r.attempt)) for r in ledger.rounds.all()]
        assert counted == [DEVICES, 0, DEVICES, DEVICES]
    assert final_bytes(run_dir) == undisturbed
    assert main(["fsck", str(run_dir), "--deep"]) == 0


def test_devices_whose_updates_went_with_a_damaged_version_train_again(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    text = config_text(rounds=3, join_timeout_s=240.0, min_reports=3, deadline_s=20.0)
    text = text.replace('name = "fedhm"\nlevels = [4]', 'name = "fedavg"').replace("frobenius-lambda = 0.0001\n", "")
    crash(run_dir, "aggregating", 2, text=text + '[aggregation]\nmode = "buffered"\nbuffer = 3\n')
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        damaged = ledger.updates.counted(1, 0)[1]
    flip(run_dir, damaged.update_digest)
    assert main(["fsck", str(run_dir), "--deep", "--repair"]) == 0
    resume_run(run_dir, RunOptions(quiet=True))
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        states = [(r.round, r.attempt, r.state) for r in ledger.rounds.all()]
        assert states == [(0, 0, "committed"), (1, 0, "abandoned"), (1, 1, "committed"), (2, 0, "committed")]
        assert len(ledger.updates.counted(1, 1)) == 3
    assert main(["fsck", str(run_dir), "--deep"]) == 0


@pytest.mark.parametrize("lost", ["flipped", "gone"])
def test_rotten_model_is_made_again_from_the_round_before(undisturbed: bytes, tmp_path: Path, lost: str) -> None:
    run_dir = tmp_path / "run"
    crash(run_dir, "published", 3, text=config_text(join_timeout_s=240.0))
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        last = ledger.rounds.last_committed()
        assert last is not None
        assert last.round == ROUNDS - 2
    if lost == "gone":
        (run_dir / "blobs" / last.model_digest[:2] / last.model_digest).unlink()
    else:
        flip(run_dir, last.model_digest)
    resume_run(run_dir, RunOptions(quiet=True))
    assert final_bytes(run_dir) == undisturbed
    assert main(["fsck", str(run_dir), "--deep"]) == 0


def test_model_that_cannot_be_made_again_is_named_and_nothing_takes_its_place(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    crash(run_dir, "published", 2, text=config_text(rounds=2, join_timeout_s=240.0))
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        last = ledger.rounds.last_committed()
        assert last is not None
        update = ledger.updates.counted(last.round, last.attempt)[0]
    kept = (run_dir / "blobs" / last.model_digest[:2] / last.model_digest).read_bytes()
    flip(run_dir, last.model_digest)
    flip(run_dir, update.update_digest)
    with pytest.raises(ArtifactCorrupt, match=rf"Put blob {last.model_digest} back from a backup"):
        resume_run(run_dir, RunOptions(quiet=True))
    (run_dir / "blobs" / last.model_digest[:2] / last.model_digest).write_bytes(kept)
    resume_run(run_dir, RunOptions(quiet=True))


@pytest.mark.parametrize("lost", ["flipped", "gone"])
def test_weights_that_rot_after_devices_trained_from_them_are_made_again(
    undisturbed: bytes, tmp_path: Path, lost: str
) -> None:
    """As when one device of several fetches them too late: they are deleted then, and the others' updates count."""
    run_dir = tmp_path / "run"
    text = config_text(join_timeout_s=240.0) + "\n[defences]\nquarantine-factor = 50.0\n"
    crash(run_dir, "recorded", 2 * DEVICES, text=text)
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        attempt = ledger.rounds.open()
        assert attempt is not None
        entries = ledger.assignments.of_attempt(attempt.round, attempt.attempt)
        assert {entry.state for entry in entries} == {"reported"}
    for digest in {entry.weights_digest for entry in entries}:
        if lost == "gone":
            (run_dir / "blobs" / digest[:2] / digest).unlink()
        else:
            flip(run_dir, digest)
    resume_run(run_dir, RunOptions(quiet=True))
    assert final_bytes(run_dir) == undisturbed
    assert main(["fsck", str(run_dir), "--deep"]) == 0


def test_graph_that_rotted_is_exported_again(undisturbed: bytes, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    crash(run_dir, "planned", 2, text=config_text(join_timeout_s=240.0))
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        attempt = ledger.rounds.open()
        assert attempt is not None
        manifest = ledger.assignments.of_attempt(attempt.round, attempt.attempt)[0].artifact_digest
    flip(run_dir, manifest)
    assert main(["fsck", str(run_dir), "--deep", "--repair"]) == 0
    resume_run(run_dir, RunOptions(quiet=True))
    assert final_bytes(run_dir) == undisturbed

"""A coordinator killed with SIGKILL anywhere, then resumed, ends with the bits of a run that was never interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.cli.assembly import RunOptions, resume_run, start_run
from coordinator.configuration_file import load_config_text
from coordinator.ledger import Ledger
from tests.federation.small_run import ROUNDS, config_text

ROOT = Path(__file__).parents[2]

# Where a round can be interrupted, and at which passing of that point: round 1, 2 and 3 are all hit by one of them.
CRASH_POINTS = [
    pytest.param("before-plan", 2, id="before-publish"),
    pytest.param("collecting", 1, id="while-devices-train"),
    pytest.param("mid-upload", 5, id="mid-upload"),
    pytest.param("aggregated-1", 2, id="mid-aggregation"),
    pytest.param("before-commit", 3, id="before-commit"),
    pytest.param("committed", 1, id="after-commit"),
]


def final_bytes(run_dir: Path) -> bytes:
    return (run_dir / "checkpoints" / "final.safetensors").read_bytes()


def crash(run_dir: Path, point: str, occurrence: int, *, verb: str = "start", broker: str = "embedded") -> None:
    """Run until the coordinator kills itself at ``point``."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.federation.small_run", verb, str(run_dir), point, str(occurrence), broker],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]


def assert_counted_once(run_dir: Path) -> None:
    """Every round was committed once, and sums exactly one update of each of its three devices."""
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        committed = [r for r in ledger.rounds() if r.state == "committed"]
        assert [(r.round, r.attempt) for r in committed] == [(i, 0) for i in range(ROUNDS)]
        for entry in committed:
            devices = [u.assignment.device for u in ledger.updates(entry.round, entry.attempt)]
            assert devices == sorted(set(devices)) == list(entry.participants)
            assert len(devices) == 3


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    start_run(load_config_text(config_text()), run_dir, RunOptions(quiet=True))
    assert_counted_once(run_dir)
    return final_bytes(run_dir)


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize(("point", "occurrence"), CRASH_POINTS)
def test_resume_after_kill_ends_bit_identical(point: str, occurrence: int, undisturbed: bytes, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    crash(run_dir, point, occurrence)
    assert not (run_dir / "checkpoints" / "final.safetensors").exists()
    resume_run(run_dir, RunOptions(quiet=True))
    assert final_bytes(run_dir) == undisturbed
    assert_counted_once(run_dir)


@pytest.mark.broker
@pytest.mark.slow
def test_resume_of_a_finished_run_changes_nothing(undisturbed: bytes, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    first = start_run(load_config_text(config_text()), run_dir, RunOptions(quiet=True))
    again = resume_run(run_dir, RunOptions(quiet=True))
    assert final_bytes(run_dir) == undisturbed
    assert again["device_table"] == first["device_table"]
    assert again["wall_s"] == first["wall_s"]

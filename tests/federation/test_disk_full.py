"""A disk that is full in the middle of a round: the run stops with the reason, and goes on once there is room."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.blobs.files import free_bytes
from coordinator.cli.assembly import resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import StoreFull
from tests.federation.small_run import DEVICES, ROUNDS, config_text

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here (needs root): {mounted.stderr.strip()[:100]}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Takes all of the room there is."""
    path = disk / "something else"
    with path.open("wb") as file:
        file.truncate(0)
    subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=4k"], capture_output=True, check=False)
    assert free_bytes(disk) == 0
    return path


def on_disk(disk: Path) -> str:
    return config_text(join_timeout_s=240.0) + f'\n[store]\ndir = "{disk}/blobs"\n'


def test_model_that_cannot_be_stored_stops_the_run_which_then_goes_on(disk: Path, tmp_path: Path) -> None:
    undisturbed, run_dir = tmp_path / "undisturbed", tmp_path / "run"
    start_run(load_config_text(config_text(join_timeout_s=240.0)), undisturbed, RunOptions(quiet=True))
    other: list[Path] = []

    def fill_before_the_sum(point: str) -> None:
        if point == "aggregating" and not other:
            other.append(fill(disk))

    config = load_config_text(on_disk(disk))
    with pytest.raises(StoreFull, match=rf"{disk}/blobs: \d+ bytes do not fit, 0 are free; free some disk space"):
        start_run(config, run_dir, RunOptions(quiet=True, on_point=fill_before_the_sum))
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        assert [r.state for r in ledger.rounds.all()] == ["aggregating"]
    assert list((disk / "blobs" / "incoming").iterdir()) == []
    other[0].unlink()
    resume_run(run_dir, RunOptions(quiet=True))
    assert_same(run_dir, undisturbed)


def test_uploads_wait_for_room_and_the_round_goes_on_where_it_was(disk: Path, tmp_path: Path) -> None:
    """Devices offer again by themselves: the coordinator need not be started again."""
    undisturbed, run_dir = tmp_path / "undisturbed", tmp_path / "run"
    start_run(load_config_text(config_text(join_timeout_s=240.0)), undisturbed, RunOptions(quiet=True))
    other: list[Path] = []
    passed: list[str] = []

    def fill_for_a_while(point: str) -> None:
        passed.append(point)
        if point == "published" and not other:
            other.append(fill(disk))
        # Woken once a second while nobody reports: by then every device was told that there is no room.
        if other and passed.count("collecting") == 8:
            other[0].unlink(missing_ok=True)

    start_run(load_config_text(on_disk(disk)), run_dir, RunOptions(quiet=True, on_point=fill_for_a_while))
    assert not other[0].exists()
    assert_same(run_dir, undisturbed)


def test_round_that_would_not_fit_is_not_begun(tmp_path: Path) -> None:
    """The first round fits; what it leaves and what the second needs do not."""
    text = config_text(join_timeout_s=240.0) + f'\n[store]\ndir = "{tmp_path}/blobs"\nquota-mb = 0.45\n'
    with pytest.raises(StoreFull, match=rf"bytes are needed for {DEVICES} updates and the model"):
        start_run(load_config_text(text), tmp_path / "run", RunOptions(quiet=True))
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        assert [(r.round, r.state) for r in ledger.rounds.all()] == [(0, "committed")]


def assert_same(run_dir: Path, undisturbed: Path) -> None:
    final = Path("checkpoints") / "final.safetensors"
    assert (run_dir / final).read_bytes() == (undisturbed / final).read_bytes()
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        assert [(r.round, r.attempt, r.state) for r in ledger.rounds.all()] == [
            (i, 0, "committed") for i in range(ROUNDS)
        ]
        assert [len(ledger.updates.counted(i, 0)) for i in range(ROUNDS)] == [DEVICES] * ROUNDS

"""``apportion profile --ladder`` where the coordinator is: written once, climbed; killed by the kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.cli import ladder as ladder_module
from coordinator.cli.ladder import SHAPES, Shape
from coordinator.local_devices.control_groups import Limits, control_group
from edge.measuring.ladder import read_ladder
from edge.supervisor.trainer_link import child_environment
from tests.cli.conftest import Command

MB = 2**20


@pytest.fixture
def short_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ladder of one small shape."""
    monkeypatch.setattr(ladder_module, "SHAPES", (Shape("mlp", "heterofl:0.0625", (4, 8), (4,)),))


@pytest.mark.slow
@pytest.mark.usefixtures("short_ladder")
def test_a_ladder_is_written_once_and_climbed(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "ladder"
    line = command("profile", "--ladder-out", folder, "--quick", "--json").line
    assert [(rung["shape"], rung["batch"], rung["is_quick"]) for rung in line["rungs"]] == [("mlp:0.0625", 4, True)]
    (rung,) = read_ladder(folder).rungs
    assert rung.graph_bytes == next((folder / rung.folder).glob("train*")).stat().st_size
    written = (folder / rung.folder / "manifest.json").stat().st_mtime_ns
    whole = command("profile", "--ladder", folder / "fresh", "--threads", "1", "--keep", tmp_path / "store", "--json")
    assert [r["outcome"] for r in whole.line["ladder"]["rows"]] == ["measured"] * 2
    assert (whole.line["method"], whole.line["profile"]["runtimes"].keys()) == ("measured", {"onnxruntime"})
    assert "writing a ladder" in whole.err
    again = command("profile", "--ladder-out", folder, "--json")
    assert len(again.line["rungs"]) == 2
    assert (folder / rung.folder / "manifest.json").stat().st_mtime_ns == written


def test_the_ladder_has_several_kinds_and_a_quick_part_that_can_be_fitted() -> None:
    assert len({shape.model for shape in SHAPES}) >= 6
    assert sum(len(shape.quick) for shape in SHAPES) >= 8
    assert all(set(shape.quick) <= set(shape.batches) for shape in SHAPES)


def test_a_runtime_that_is_none_has_no_ladder(command: Command, tmp_path: Path) -> None:
    outcome = command("profile", "--ladder-out", tmp_path / "ladder", "--runtime", "abacus", "--json")
    assert outcome.status == 2
    assert "'abacus' is unknown, known are onnxruntime" in outcome.error["message"]
    assert not (tmp_path / "ladder").exists()


def test_a_browser_has_no_ladder_and_measures_itself(command: Command, tmp_path: Path) -> None:
    outcome = command("profile", "--ladder-out", tmp_path / "ladder", "--runtime", "onnxruntime_web", "--json")
    assert outcome.status == 2
    assert "a browser measures itself" in outcome.error["message"]
    assert "take onnxruntime," in outcome.error["message"]
    assert not (tmp_path / "ladder").exists()


@pytest.mark.slow
def test_a_kill_by_the_kernel_is_a_result(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ladder_module, "SHAPES", (Shape("mlp", "", (16,), (16,)),))
    folder = tmp_path / "ladder"
    assert command("profile", "--ladder-out", folder, "--quick").status == 0
    try:
        # Two idle processes take up to 40, and this one's steps 50 more.
        group = control_group(f"apportion-{os.getpid()}-profile", Limits(memory_bytes=48 * MB))
    except OSError as error:
        pytest.skip(f"control groups cannot be made here: {error}")
    words = ["profile", "--ladder", str(folder), "--threads", "1", "--ceiling-mb", "400", "--json"]
    device = "import sys; sys.modules['typer'] = None; from edge.__main__ import main; sys.exit(main(sys.argv[1:]))"
    try:
        done = subprocess.run(
            group.command([sys.executable, "-c", device, *words]),
            capture_output=True, text=True, env=child_environment(), check=False,
        )  # fmt: skip
        kills = group.report().kills
    finally:
        group.close()
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["ladder"]["rows"]
    assert found["outcome"] == "killed"
    assert found["reason"].startswith("SIGKILL (killed, perhaps out of memory)")
    assert kills

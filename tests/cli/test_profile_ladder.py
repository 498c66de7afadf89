"""``apportion profile --ladder`` where the coordinator is: written once, climbed, drawn; killed by the kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli import ladder as ladder_module
from coordinator.cli.ladder import SHAPES, Shape
from coordinator.cli.profile_plot import draw_values, spread
from coordinator.control_groups import Limits, control_group
from edge.contracts.errors import ConfigError
from edge.profile_ladder import read_ladder
from edge.trainer_link import child_environment
from tests.cli.conftest import Command

MB = 2**20


@pytest.fixture
def short_ladder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ladder of one small shape."""
    monkeypatch.setattr(ladder_module, "SHAPES", (Shape("mlp", "heterofl:0.0625", (4, 8), (4,)),))


def row(shape: str, batch: int, threads: int, **changes: Any) -> dict[str, Any]:
    parameters = {"small": 20_000, "small:0.5": 6_000, "large": 900_000}[shape]
    live = 40 * parameters + batch * 100_000
    values = {
        "shape": shape, "runtime": "onnxruntime", "batch": batch, "threads": threads, "parameters": parameters,
        "macs": 40 * parameters, "live_bytes": live, "predicted_bytes": live, "graph_bytes": 50_000,
        "outcome": "measured", "reason": "", "idle_bytes": 52 * MB, "peak_bytes": 53 * MB + live,
        "alone_ms": 0.001 * live / 1e3, "is_busy": False, "limit_bytes": 200 * MB,
    }  # fmt: skip
    return {**values, **changes}


def drawn_values(**changes: Any) -> dict[str, Any]:
    rows = [row(shape, batch, threads) for shape in ("small", "small:0.5", "large") for batch in (8, 32)
            for threads in (1, 2)]  # fmt: skip
    rows.append(row("large", 32, 1, outcome="killed", reason="killed at its limit of 200 MB", alone_ms=0.0))
    memory = {"runtime": "onnxruntime", "scale": 1.0, "offset_bytes": MB, "floor_bytes": 0}
    times = {"runtime": "onnxruntime", "threads": 1, "constant_ms": 1.0, "gigamac_ms": 40.0, "megabyte_ms": 0.7,
             "graph_kilobyte_ms": 0.02, "megaparameter_ms": 0.0}  # fmt: skip
    ladder = {"rows": rows, "memory": [memory], "step_times": [times], **changes}
    return {"profile": {"device": "pi-07", "board": "Raspberry Pi 4 Model B Rev 1.4"}, "ladder": ladder}


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


def test_a_figure_has_its_axes_units_and_what_was_killed(tmp_path: Path) -> None:
    text = draw_values(drawn_values(), tmp_path / "profile.svg").read_text()
    for words in (
        "model size (parameters)",
        "peak memory of the trainer (MB, 2^20 bytes)",
        "time of a training step, median (ms)",
        "memory ceiling 200 MB",
        "killed at its limit",
        "onnxruntime, batch 32, 2 threads",
        "small:0.5",
        "pi-07: Raspberry Pi 4 Model B Rev 1.4",
        "fitted",
        "20 k",
    ):
        assert words in text, words
    png = draw_values(drawn_values(), tmp_path / "profile.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert len(png) > 20_000


def test_a_ceiling_far_above_is_told_in_words_and_busy_steps_on_the_axis(tmp_path: Path) -> None:
    rows = [row("small", 8, 1, limit_bytes=20_000 * MB, is_busy=True), row("large", 8, 1)]
    text = draw_values(drawn_values(rows=rows), tmp_path / "profile.svg").read_text()
    assert "memory ceiling 20,000 MB, far above" in text
    assert "(ms, of its processor where busy)" in text


def test_names_above_a_panel_keep_their_distance_and_their_order() -> None:
    assert spread([0.1, 0.5, 0.9], 0.05) == [0.1, 0.5, 0.9]
    assert spread([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    assert spread([0.2, 0.21, 0.4, 0.42], 0.1) == pytest.approx([0.1575, 0.2575, 0.3575, 0.4575], abs=0.01)
    assert spread([], 0.1) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--plot", "p.png"], "none is given"),
        (["--ladder", "l", "--plot", "p.bmp"], "p.bmp is not one of .png, .svg, .pdf"),
        (["--ladder", "l", "--plot", "{folder}/none/p.png"], "there is no folder"),
    ],
)
def test_a_figure_that_cannot_be_is_refused_before_anything_is_measured(
    command: Command, tmp_path: Path, words: list[str], told: str
) -> None:
    outcome = command("profile", *(word.format(folder=tmp_path) for word in words), "--json")
    assert outcome.status == 2
    assert told in outcome.error["message"]
    assert not Path("l").exists()


def test_a_figure_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="matplotlib is not installed") as refused:
        draw_values(drawn_values(), tmp_path / "profile.png")
    assert refused.value.hint == "pip install 'apportion[fleet]'"


def test_nothing_measured_is_nothing_to_draw(tmp_path: Path) -> None:
    rows = [row("small", 8, 1, outcome="skipped")]
    with pytest.raises(ConfigError, match="no rung was measured"):
        draw_values(drawn_values(rows=rows), tmp_path / "profile.png")


def test_a_kill_by_the_kernel_is_a_result(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ladder_module, "SHAPES", (Shape("mlp", "heterofl:0.5", (16,), (16,)),))
    folder = tmp_path / "ladder"
    assert command("profile", "--ladder-out", folder, "--quick").status == 0
    try:
        group = control_group(f"apportion-{os.getpid()}-profile", Limits(memory_bytes=40 * MB))
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

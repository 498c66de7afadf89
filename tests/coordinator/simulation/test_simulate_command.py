"""``apportion simulate``: its line, its files, and what it refuses before the first round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli.command import main
from coordinator.ledger.ledger import Ledger
from tests.coordinator.simulation.small_simulation import TEXT


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    return path


def line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    return found


def test_prints_one_line_and_leaves_a_run_directory(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    command = ["simulate", str(config), "--rounds", "2", "--seed", "9", "--run-dir", str(folder), "--quiet", "--json"]
    assert main(command) == 0
    result = line(capsys)
    assert (result["schema"], result["ok"], result["rounds"]) == ("apportion.simulate/1", True, 2)
    assert {path.name for path in folder.iterdir()} >= {"config.toml", "summary.json", "metrics.jsonl", "checkpoints"}
    saved = json.loads((folder / "summary.json").read_text())
    assert {key: value for key, value in result.items() if key not in ("schema", "ok")} == saved
    assert "seed = 9" in (folder / "config.toml").read_text()
    # Again: what is finished is told, not simulated anew.
    before = (folder / "metrics.jsonl").read_bytes()
    assert main(command) == 0
    assert line(capsys) == result
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_people_read_accuracy_time_and_bytes(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(config), "--rounds", "1", "--run-dir", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr()
    assert "6 simulated devices, 4 in a round, 1 process(es) on cpu" in shown.err
    assert "[ROUND 1/1] 4 reports (" in shown.err
    assert "after 1 rounds on 6 simulated devices" in shown.out
    assert "rank 1/8" in shown.out


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"level = 4": "level = 5"}, [], "$.cohort.local[1].level: the method has no level '5'; its levels are 'full'"),
        ({"level = 4": "level = true"}, [], "$.cohort.local[1].level"),
        ({"size = 4": 'size = 4\ncapacity = "some"'}, [], "$.cohort.capacity: 'some' is not known"),
        ({"levels = [1, 4, 8]": "levels = [1, 4, 8]\nwidth = 3"}, [], "$.method.width"),
        ({"[cohort]": '[simulation]\nprofile = "phone"\n[cohort]'}, [], "$.simulation.profile: 'phone' is not known"),
        ({}, ["--device", "tpu"], "--device: 'tpu' is not known"),
    ],
)
def test_bad_input_is_refused_before_the_first_round(
    change: dict[str, str],
    options: list[str],
    words: str,
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = TEXT
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    config.write_text(text)
    assert main(["simulate", str(config), "--run-dir", str(tmp_path / "run"), "--json", *options]) == 2
    assert words in line(capsys)["error"]["message"]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    config.write_text(TEXT)
    # Mended, it starts in the same folder.
    assert main(["simulate", str(config), "--rounds", "1", "--run-dir", str(tmp_path / "run"), "--json"]) == 0


def test_directory_of_a_run_is_left_alone(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    Ledger.create(tmp_path / "run" / "ledger.sqlite", federation="fed", config="", seed=0).close()
    assert main(["simulate", str(config), "--run-dir", str(tmp_path / "run"), "--json"]) == 2
    assert "holds a run already" in line(capsys)["error"]["message"]

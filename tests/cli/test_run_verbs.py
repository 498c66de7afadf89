"""``demo``, ``run`` and ``resume`` from the first line to the last: what goes to stdout and what to stderr."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.federation.small_run import config_text

pytestmark = pytest.mark.slow

DEMO_KEYS = {
    "accuracy",
    "rounds",
    "devices",
    "levels",
    "wall_s",
    "torch_loaded_on_devices",
    "over_budget",
    "bytes_up",
    "bytes_down",
    "run_dir",
}


@pytest.mark.broker
def test_demo_then_resume_tell_the_same_result(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run_dir = tmp_path / "small.toml", tmp_path / "run"
    config.write_text(config_text(rounds=2, evaluation="every = 1"))
    monkeypatch.setattr("coordinator.cli.demo.CONFIG", config)
    outcome = command("demo", "--run-dir", run_dir, "--seed", "11", "--json")
    assert outcome.status == 0, outcome.err
    line = outcome.line
    assert line["schema"] == "apportion.demo/1"
    assert line.keys() >= DEMO_KEYS
    assert (line["rounds"], line["devices"], line["levels"]) == (2, 3, 1)
    assert (line["torch_loaded_on_devices"], line["over_budget"]) == (False, 0)
    assert all(type(line[key]) is int for key in ("rounds", "devices", "levels", "over_budget", "bytes_up"))
    assert tomllib.loads((run_dir / "config.toml").read_text())["federation"]["seed"] == 11
    for words in ("federation small: amqtt broker", "device-02 is here", "[ROUND 2/2] 3 reports, loss", "accuracy"):
        assert words in outcome.err
    table = [row for row in outcome.err.splitlines() if row.startswith("device-")]
    assert [row.split()[0] for row in table] == ["device-00", "device-01", "device-02"]
    assert max(map(len, table)) <= 80

    again = command("resume", run_dir, "--json")
    assert again.status == 0
    assert {**again.line, "schema": ""} == {**line, "schema": ""}
    assert "agents on this machine" not in again.err  # a finished run starts nothing

    people = command("resume", run_dir, "--quiet")
    assert (people.status, people.err) == (0, "")
    (said,) = people.out.splitlines()
    assert said.startswith(f"accuracy {line['accuracy']:.4f} after 2 rounds on 3 devices")

    occupied = command("demo", "--run-dir", run_dir, "--json")
    assert occupied.status == 2
    assert json.loads((run_dir / "summary.json").read_text())["accuracy"] == line["accuracy"]

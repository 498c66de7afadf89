"""Scores on devices in a run: those of the simulation, counted once over kills, and what stays on a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.cli.assembly import resume_run
from coordinator.cli.open_run import RunOptions
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from edge.contracts.plan import read_order
from edge.contracts.tensor_file import read_tensor_file
from tests.coordinator.simulation.small_simulation import simulated
from tests.federation.small_run import DEVICES, config_text, crash

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]


def text() -> str:
    scored = config_text(evaluation="every = 1\ndevices = 0.2\ndevices-least = 5", rounds=2)
    return scored + "\n[personal]\nfine-tune = 8\n"


def scores(run_dir: Path) -> dict[int, dict[str, Any]]:
    """Round -> its scores, of the ledger."""
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        committed = [r for r in ledger.rounds.all() if r.state == "committed"]
        return {r.round: r.metrics["device_evaluation"] for r in committed}


def assert_close(found: Any, expected: Any, where: str = "") -> None:
    """Equal but for the last digits of float32."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_close(found[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for index, value in enumerate(expected):
            assert_close(found[index], value, f"{where}[{index}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5), where
    else:
        assert found == expected, where


def test_killed_run_has_the_scores_of_the_simulation_each_once(tmp_path: Path) -> None:
    for index, (point, occurrence) in enumerate([("mid-upload", 1), ("planned", 2), ("before-commit", 1)]):
        crash(tmp_path / "run", point, occurrence, text="" if index else text())
    summary = resume_run(tmp_path / "run", RunOptions(quiet=True))
    simulated(load_config_text(text()), tmp_path / "simulated")
    lines = (tmp_path / "simulated" / "metrics.jsonl").read_text().splitlines()
    expected = {entry["round"]: entry["device_evaluation"] for entry in map(json.loads, lines)}
    found = scores(tmp_path / "run")
    assert sorted(found) == [0, 1, 2]
    assert_close(found, expected)
    assert summary["device_evaluation"] == found[2]
    assert summary["rounds"] == 2
    assert "on their own examples" in (tmp_path / "run" / "report.html").read_text()
    kept = 0
    with Ledger.open(tmp_path / "run" / "ledger.sqlite") as ledger:
        last = ledger.rounds.last_committed()
        assert last is not None
        for update in ledger.updates.counted(last.round, last.attempt):
            order = read_order(update.assignment.order)
            assert (order.upload, update.report.scores is not None) == ((), True)
            kept += update.report.scores is not None and update.report.scores.kept
    files = [*(tmp_path / "run" / "devices").rglob("personal/*.tuned.safetensors")]
    assert len(files) == kept == found[2]["fine_tuning"]["kept"]
    final = read_tensor_file(tmp_path / "run" / "checkpoints" / "final.safetensors", where="final")
    for path in files:
        assert any(not np.array_equal(value, final.get(n)) for n, value in read_tensor_file(path, where="own").items())
    assert found[2]["devices"] == DEVICES

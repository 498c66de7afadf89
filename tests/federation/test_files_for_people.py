"""What a run and a simulation leave to read: files as their schemas say, and a report before and at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.cli.assembly import resume_run
from coordinator.cli.open_run import RunOptions
from coordinator.reporting.files import RoundLine, Summary
from coordinator.reporting.reading import read_subject
from coordinator.reporting.report import report
from coordinator.run_file.loading import load_config_text
from tests.coordinator.reporting.test_schemas import problems
from tests.coordinator.simulation.small_simulation import simulated
from tests.federation.small_run import config_text, crash

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]

TEXT = config_text(evaluation="every = 1\ndevices = 0.2\ndevices-least = 5", rounds=2) + "\n[personal]\nfine-tune = 8\n"


def check_files(run_dir: Path) -> dict[str, Any]:
    """Check that every key of the run's files is a published one; the summary."""
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    assert problems("summary", summary) == []
    assert set(summary) <= set(Summary.__struct_fields__)
    device = msgspec.convert(summary, Summary).device_table[0]
    assert all(set(row) <= set(device.__struct_fields__) for row in summary["device_table"])
    for line in map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines()):
        if line["event"] == "round":
            assert problems("metrics", line) == []
            assert set(line) <= set(RoundLine.__struct_fields__)
    return summary


def test_run_leaves_files_as_published_and_a_report_of_what_its_ledger_holds(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    crash(run_dir, "planned", 2, text=TEXT)
    begun = read_subject(run_dir)
    assert (len(begun.rounds), begun.is_finished) == (1, False)
    assert "The run is not finished" in report(begun)
    resume_run(run_dir, RunOptions(quiet=True))
    summary = check_files(run_dir)
    assert summary["environment"]["apportion"]
    page = (run_dir / "report.html").read_text()
    ended = read_subject(run_dir)
    assert ended.is_finished
    assert f"reached accuracy {summary['accuracy']:.4f}" in page
    assert page.count("<svg viewBox") >= 5
    assert all(device.device in page for device in ended.devices)
    assert ended.digests["model after the last round"]
    # The page that is written again says the same; only what ended with the run (its audit log) came later.
    assert report(ended).count("<section>") == page.count("<section>")


def test_simulation_leaves_files_as_published_and_has_a_report(tmp_path: Path) -> None:
    simulated(load_config_text(TEXT), tmp_path / "run")
    summary = check_files(tmp_path / "run")
    found = read_subject(tmp_path / "run")
    assert (found.is_simulated, found.is_finished, found.score) == (True, True, summary["accuracy"])
    assert "apportion simulate" in report(found)

"""Logs as JSON lines: one object per line, events among them, and nothing else on the stream."""

from __future__ import annotations

import io
import json
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator.cli.run import show
from coordinator.reporting.progress import NO_BREAK, Progress


def test_what_is_said_and_recorded_is_an_object_per_line(tmp_path: Path) -> None:
    stream = io.StringIO()
    progress = Progress(stream=stream, metrics=tmp_path / "metrics.jsonl", form="json")
    progress.say(f"device-01{NO_BREAK}3/30 größer")
    progress.record("round", round=0, train_loss=0.5)
    progress.invite(["copy this:", "apportion agent --device ID"])
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in found] == ["said", "round", "said", "said"]
    assert found[0]["message"] == "device-01 3/30 größer"
    assert found[1]["values"] == {"round": 0, "train_loss": 0.5}
    assert found[3]["message"] == "apportion agent --device ID"
    assert abs((datetime.now(UTC) - datetime.fromisoformat(found[0]["time"])).total_seconds()) < 60
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["train_loss"] == 0.5


def test_a_status_is_an_object_too() -> None:
    stream = io.StringIO()
    progress = Progress(stream=stream, quiet_s=0.0, form="json")
    with progress.watching(lambda: "round 1/3: 2/4 reports"):
        while not stream.getvalue():
            time.sleep(0.01)
    assert json.loads(stream.getvalue().splitlines()[0])["message"] == "round 1/3: 2/4 reports"


def test_the_table_of_devices_is_left_out_where_stderr_is_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"device": "pi-07", "level": "full", "rounds": 1}
    summary = {
        "run_dir": str(tmp_path),
        "device_table": [row],
        "accuracy": 0.5,
        "rounds": 1,
        "devices": 1,
        "levels": 1,
        "wall_s": 1.0,
    }
    (tmp_path / "config.toml").write_text('[tracking]\nlogs = "json"\n')
    show(summary, quiet=False, as_json=True)
    assert capsys.readouterr().err == ""

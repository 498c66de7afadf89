"""A local agent that dies while its run goes on is started again, and its reports count in later rounds."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from coordinator.cli.assembly import start_run
from coordinator.cli.open_run import RunOptions
from coordinator.ledger.ledger import Ledger
from coordinator.run_file.loading import load_config_text
from tests.federation.small_run import DEVICES, ROUNDS, config_text

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]


def agent_of(device: str) -> psutil.Process:
    """The agent called ``device`` that this process started."""
    agents = [child for child in psutil.Process().children() if device in child.cmdline()]
    assert len(agents) == 1
    return agents[0]


def test_killed_agent_comes_back_and_reports_in_later_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every round needs the reports of all devices: without its agent the run would not end."""
    run_dir, killed = tmp_path / "run", list[int]()

    def on_point(point: str) -> None:
        if point == "collecting" and not killed:
            agent = agent_of("device-01")
            killed.append(agent.pid)
            agent.kill()
        if point == "committed":
            assert agent_of("device-01").pid not in killed

    text = config_text(min_reports=DEVICES)
    summary = start_run(load_config_text(text), run_dir, RunOptions(on_point=on_point))
    assert len(killed) == 1
    assert summary["rounds"] == ROUNDS
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        reported = [
            {update.assignment.device for update in ledger.updates.of_attempt(entry.round, entry.attempt)}
            for entry in ledger.rounds.all()
            if entry.state == "committed"
        ]
    assert all("device-01" in devices for devices in reported[1:])
    told = [line for line in capsys.readouterr().err.splitlines() if "the agent of device-01" in line]
    assert len(told) == 1
    assert told[0].endswith("ended by signal 9: it is started again in 1 s; see agent.log in its folder")
    events = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    (event,) = [event for event in events if event["event"] == "agent-restart"]
    assert (event["device"], event["status"], event["starts"]) == ("device-01", -9, 1)

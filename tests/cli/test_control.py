"""``apportion pause``, ``continue``, ``drain`` and ``stop`` beside a run in another process."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.rounds.control import CONTROL
from tests.cli.conftest import Command
from tests.cli.test_interrupt import start, wait_for_line
from tests.federation.small_run import config_text


def finish(process: subprocess.Popen[str], *, within_s: float) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=within_s)
    return process.returncode, out, err


def committed(run_dir: Path) -> int:
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        return sum(entry.state == "committed" for entry in ledger.rounds.all())


@pytest.mark.broker
@pytest.mark.slow
def test_run_is_paused_continued_drained_stopped_and_resumed(tmp_path: Path, command: Command) -> None:
    config, run_dir = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(config_text(rounds=40))
    first = start("run", str(config), "--run-dir", str(run_dir), "--json")
    wait_for_line(first, "[ROUND 1/40] 3 reports")
    paused = command("pause", str(run_dir), "--json")
    assert (paused.status, paused.line["wish"], paused.line["was_live"]) == (0, "pause", True)
    wait_for_line(first, "paused: no further round begins")
    so_far = committed(run_dir)
    time.sleep(1.5)
    assert committed(run_dir) == so_far
    in_the_way = command("resume", str(run_dir), "--json")
    assert in_the_way.status == 1
    assert in_the_way.error["hint"] == f"a paused one goes on with: apportion continue {run_dir}"
    assert command("continue", str(run_dir)).out.strip().endswith("it goes on")
    wait_for_line(first, "the run goes on")
    drained = command("drain", str(run_dir), "--wait-s", "60", "--json")
    assert (drained.status, drained.line["live"]) == (0, False)
    status, out, err = finish(first, within_s=30)
    assert status == 75
    assert json.loads(out)["error"]["code"] == "run-stopped"
    assert f"hint: go on with: apportion resume {run_dir}" in err
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        assert ledger.rounds.open() is None

    second = start("resume", str(run_dir), "--json")
    wait_for_line(second, "3 reports")
    began = time.monotonic()
    assert command("stop", str(run_dir), "--wait-s", "30", "--json").status == 0
    status, _, err = finish(second, within_s=30)
    assert (status, "stopped as asked (stop)" in err) == (75, True)
    assert time.monotonic() - began < 15
    assert committed(run_dir) > so_far


def test_wish_for_a_run_nobody_runs_says_so(tmp_path: Path, command: Command) -> None:
    Ledger.create(tmp_path / "ledger.sqlite", federation="fed", config="", seed=0).close()
    outcome = command("stop", str(tmp_path), "--json")
    assert outcome.status == 0
    assert (outcome.line["wish"], outcome.line["was_live"], outcome.line["live"]) == ("stop", False, False)
    assert f"no coordinator runs here; go on with: apportion resume {tmp_path}" in outcome.err
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.requests.find(CONTROL) == "stop"


def test_wish_for_a_finished_run_or_none_is_refused(tmp_path: Path, command: Command) -> None:
    nothing = command("pause", str(tmp_path), "--json")
    assert (nothing.status, nothing.error["code"]) == (2, "bad-config")
    with Ledger.create(tmp_path / "ledger.sqlite", federation="fed", config="", seed=0) as ledger:
        ledger.move_federation("running")
        ledger.move_federation("finished")
    over = command("pause", str(tmp_path), "--json")
    assert (over.status, over.error["code"]) == (1, "ledger-error")
    assert "the run is finished; there is nothing to pause" in over.error["message"]

"""Ctrl-C: nothing stays behind, and the run goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from coordinator.ledger.ledger import Ledger
from tests.federation.small_run import config_text

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
GONE_WITHIN_S = 5.0


def start(*arguments: str) -> subprocess.Popen[str]:
    """``apportion ARGUMENTS`` in a process group of its own, as a shell starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "edge", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_line(process: subprocess.Popen[str], words: str) -> None:
    """Read its stderr up to the line with ``words``."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return
    pytest.fail(f"it ended without saying '{words}'")


def stop(process: subprocess.Popen[str], number: signal.Signals, *, everything: bool) -> tuple[str, str]:
    """Send the signal; nothing it started is left a few seconds later. What it wrote to stdout and stderr."""
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 1 + 3  # the broker and three supervisors, most often their trainers too
    (os.killpg if everything else os.kill)(process.pid, number)
    _, alive = psutil.wait_procs(children, timeout=GONE_WITHIN_S)
    assert alive == []
    return process.communicate(timeout=30)


@pytest.mark.broker
def test_stopped_run_leaves_no_process_and_goes_on(tmp_path: Path) -> None:
    config, run_dir = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(config_text(rounds=60))
    # A terminal sends Ctrl-C to everything it started, a service manager its signal to the first process only.
    ways = [
        (["run", str(config), "--run-dir", str(run_dir)], "[ROUND 2/60] 3 orders", signal.SIGINT, True, 130),
        (["resume", str(run_dir)], "[ROUND 3/60] 3 orders", signal.SIGTERM, False, 143),
    ]
    for arguments, words, number, everything, status in ways:
        process = start(*arguments, "--json")
        try:
            wait_for_line(process, words)
            out, err = stop(process, number, everything=everything)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        assert process.returncode == status, err
        assert json.loads(out)["error"]["code"] == "interrupted"
        assert f"go on with: apportion resume {run_dir}" in err
        assert "Traceback" not in err
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        committed = [r.round for r in ledger.rounds.all() if r.state == "committed"]
    assert committed == list(range(len(committed)))
    assert len(committed) >= 2

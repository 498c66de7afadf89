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

from tests.federation.small_run import config_text

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


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "to_group", "status"),
    [
        pytest.param(signal.SIGINT, True, 130, id="ctrl-c"),
        pytest.param(signal.SIGTERM, False, 143, id="terminated"),
    ],
)
def test_stopped_run_leaves_no_process_and_goes_on(
    number: signal.Signals, to_group: bool, status: int, tmp_path: Path
) -> None:
    config, run_dir = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(config_text(rounds=40, evaluation="every = 0"))
    process = start("run", str(config), "--run-dir", str(run_dir), "--json")
    try:
        wait_for_line(process, "[ROUND 2/40] 3 orders published")
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 1 + 3  # the broker and three supervisors, most often their trainers too
        # A terminal sends Ctrl-C to everything it started, a service manager to the first process only.
        (os.killpg if to_group else os.kill)(process.pid, number)
        _, alive = psutil.wait_procs(children, timeout=GONE_WITHIN_S)
        assert alive == []
        out, err = process.communicate(timeout=30)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == status, err
    assert json.loads(out)["error"]["code"] == "interrupted"
    assert f"go on with: apportion resume {run_dir}" in err
    assert "Traceback" not in err

    resumed = start("resume", str(run_dir), "--json")
    try:
        # Round 1 was done; the second one was not.
        wait_for_line(resumed, "[ROUND 3/40]")
    finally:
        os.killpg(resumed.pid, signal.SIGKILL)
        resumed.communicate()

"""A round's deadline fires when it is due: after a restart, and after the process stood still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.federation.hostile_device import HostileDevice
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text

CHILD = """
import sys
from coordinator.rounds.round_clock import RoundClock
clock = RoundClock()
clock.start(1.5)
print("started", flush=True)
sys.stdin.readline()
print(clock.remaining_s(), flush=True)
"""


@pytest.mark.slow
def test_deadline_passes_while_the_process_is_suspended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "started\n"
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(2.0)
        os.kill(child.pid, signal.SIGCONT)
        child.stdin.write("\n")
        child.stdin.flush()
        assert float(child.stdout.readline()) == 0.0


@pytest.mark.slow
@pytest.mark.runtime
def test_deadline_goes_on_from_what_was_left_after_a_restart(
    tmp_path: Path, exports: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 s of 4 have passed when the coordinator is gone; after it is back 1 s is left, however long it was away."""
    monkeypatch.setattr("coordinator.rounds.collecting.STORE_DEADLINE_S", 0.0)
    text = config_text(local=0, size=1, rounds=1, deadline_s=4.0, join_timeout_s=1)
    with InProcessFederation(tmp_path, exports, text) as stage:

        def die(point: str) -> None:
            if point == "collecting" and stage.federation.devices.clock.remaining_s() < 1.5:
                raise KeyboardInterrupt

        def give_up(point: str) -> None:
            if point == "planned":
                raise GeneratorExit  # the next attempt is of no interest here

        stage.on_point = die
        with HostileDevice(stage.broker, stage.name, "deaf", lambda order: None):
            with pytest.raises(KeyboardInterrupt):
                stage.run()
            left = stage.ledger.rounds.all()[0].deadline_s
            assert 0 < left < 3
            time.sleep(1.5)
            stage.on_point, started = give_up, time.monotonic()
            with pytest.raises(GeneratorExit):
                stage.run()
            assert left - 0.5 < time.monotonic() - started < left + 3
            assert [entry.state for entry in stage.ledger.assignments.of_attempt(0, 0)] == ["expired"]

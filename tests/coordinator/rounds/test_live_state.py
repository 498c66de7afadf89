"""The fleet as it is, in a file: what a hello, a heartbeat and a goodbye say is what is read back."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from coordinator.history.live import LiveState, read_live
from coordinator.messaging.cohort import Cohort
from coordinator.rounds.live_state import live_state, written_live
from coordinator.rounds.round_clock import RoundClock
from edge.contracts.messages import Heartbeat, Hello
from profiles.device import DeviceProfile
from tests.waiting import wait_until


def cohort_of(*devices: str) -> Cohort:
    cohort = Cohort(["onnxruntime"])
    for device in devices:
        profile = DeviceProfile(device=device, budget_bytes=7, temperature_c=71.5, battery_percent=40.0, charging=False)
        runtimes = {} if device == "bare" else {"onnxruntime": "1.31"}
        told = msgspec.structs.replace(profile, trainer_idle_bytes=dict.fromkeys(runtimes, 1))
        hello = Hello(device=device, agent_version="1", profile=told, runtimes=runtimes, num_examples=5)
        cohort.greet(hello)
    return cohort


def test_state_of_each_device_is_what_it_said_last() -> None:
    cohort = cohort_of("away", "bare", "hot", "works")
    cohort.beat("works", Heartbeat(state="training", assignment_id="a", step=3, total_steps=9, loss=0.5))
    cohort.beat("hot", Heartbeat(state="waiting", waiting_for="temperature", reason="71.5 C, 70 allowed"))
    cohort.leave("away", "connection lost")
    away, bare, hot, works = live_state(cohort, RoundClock()).devices
    assert (away.is_here, away.away_reason) == (False, "connection lost")
    assert "bare" in bare.unusable
    assert bare.is_here
    assert (hot.state, hot.waiting_for, hot.temperature_c, hot.charging) == ("waiting", "temperature", 71.5, False)
    assert (works.state, works.step, works.total_steps, works.loss) == ("training", 3, 9, 0.5)
    assert abs(works.heard_at - time.time()) < 5


def test_file_is_there_while_the_run_is_and_follows_it(tmp_path: Path) -> None:
    cohort = cohort_of("one")
    with written_live(tmp_path, cohort, RoundClock()):
        wait_until(lambda: read_live(tmp_path) is not None, "live.json", 5.0)
        found = read_live(tmp_path)
        assert found is not None
        assert [device.device for device in found.devices] == ["one"]
        assert not found.is_stale(time.time())
    assert list(tmp_path.iterdir()) == []


def test_file_that_is_old_or_damaged_is_told(tmp_path: Path) -> None:
    (tmp_path / "live.json").write_text("{")
    assert read_live(tmp_path) is None
    assert LiveState(written_at=time.time() - 60, deadline_left_s=0.0, devices=()).is_stale(time.time())

"""An agent that waits for its owner's conditions: it says what for, once, and goes on when they are met."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from edge.agent import Agent
from edge.contracts.messages import Heartbeat
from edge.contracts.tensor_file import decode_tensors
from edge.supervisor import gate
from edge.supervisor.conditions import Conditions, Surroundings, TimeWindow
from tests.edge.agent_bench import Bench
from tests.edge.tiny_artifact import TinyJob

pytestmark = pytest.mark.slow

LONG_STEPS = 60_000
"""About two seconds of the tiny graph."""


class Device:
    """Files that say what the test wants, and a clock on the wall that stands still."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.minute = 12 * 60
        self.write("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n")
        self.write("sys/class/thermal/thermal_zone0/type", "cpu-thermal\n")
        self.heat(40)

    @property
    def around(self) -> Surroundings:
        return Surroundings(self._root, lambda: self.minute)

    def heat(self, degrees: int) -> None:
        self.write("sys/class/thermal/thermal_zone0/temp", f"{degrees * 1000}\n")

    def write(self, path: str, text: str) -> None:
        place = self._root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = place.with_suffix(".new")
        unfinished.write_text(text)
        unfinished.replace(place)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(gate, "CHECK_S", 0.0)  # every tick of the agent
    return Device(tmp_path / "root")


def beats(bench: Bench) -> list[Heartbeat]:
    return [body for kind, body in list(bench.coordinator.seen) if kind == "heartbeat"]


def waited_for(bench: Bench) -> list[str]:
    """What the heartbeats named, repetitions left out."""
    told = [beat.waiting_for for beat in beats(bench)]
    return [name for index, name in enumerate(told) if index == 0 or told[index - 1] != name]


def wait_for_beat(bench: Bench, where: Callable[[Heartbeat], bool]) -> Heartbeat:
    found: Heartbeat = bench.coordinator.wait_for("heartbeat", where=where)
    return found


def is_still(agent: Agent) -> bool:
    assert agent.trainer.pid is not None
    return psutil.Process(agent.trainer.pid).status() == psutil.STATUS_STOPPED


def trained(bench: Bench, job: TinyJob) -> dict[str, bytes]:
    """The update's tensors, once the report has come."""
    bench.coordinator.wait_for("report", where=lambda report: report.assignment_id == job.order.assignment_id)
    tensors = decode_tensors(bench.coordinator.updates[job.order.assignment_id], where="test")
    return {name: array.tobytes() for name, array in tensors.items()}


def test_agent_waits_for_its_time_and_then_trains(bench: Bench, device: Device) -> None:
    window = TimeWindow.parse("22:00-06:00")
    agent = bench.agent(around=device.around, conditions=Conditions(window=window), heartbeat_s=600.0)
    job = bench.publish()
    bench.coordinator.order(job.order)
    beat = wait_for_beat(bench, lambda b: b.waiting_for == "time")
    assert (beat.state, beat.reason) == ("waiting", "it is 12:00, training is allowed 22:00-06:00")
    assert beat.assignment_id == job.order.assignment_id
    time.sleep(1.2)  # two more ticks
    assert waited_for(bench) == ["", "time"]
    assert sum(beat.waiting_for == "time" for beat in beats(bench)) == 1
    assert agent.state == "waiting"
    device.minute = 23 * 60
    trained(bench, job)
    assert waited_for(bench) == ["", "time", ""]


def test_agent_tells_every_new_reason_at_once(bench: Bench, device: Device) -> None:
    conditions = Conditions(window=TimeWindow(0, 60), max_temperature_c=70.0)
    bench.agent(around=device.around, conditions=conditions, heartbeat_s=600.0)
    device.heat(80)
    job = bench.publish()
    bench.coordinator.order(job.order)
    wait_for_beat(bench, lambda b: b.waiting_for == "time")
    device.minute = 5
    hot = wait_for_beat(bench, lambda b: b.waiting_for == "temperature")
    assert hot.reason == "the processor has 80.0 C, training goes on at 70 C"
    device.heat(68)  # below the limit, not yet by the margin
    time.sleep(1.2)
    assert not bench.coordinator.reports
    device.heat(66)
    trained(bench, job)
    assert waited_for(bench) == ["", "time", "temperature", ""]


def test_agent_refuses_what_its_control_group_would_kill(bench: Bench, device: Device) -> None:
    device.write("proc/self/cgroup", "0::/agent\n")
    device.write("sys/fs/cgroup/agent/memory.max", "90000000\n")
    agent = bench.agent(around=device.around)
    job = bench.publish(peak_bytes=90_000_001)
    bench.coordinator.order(job.order)
    refusal = bench.coordinator.wait_for("refuse")
    assert (refusal.code, refusal.needed_bytes, refusal.budget_bytes) == ("device-refused", 90_000_001, 90_000_000)
    assert "the device's memory or its limit is 90000000" in refusal.reason
    assert agent.state == "idle"


def test_agent_pauses_a_training_that_gets_hot_and_goes_on_where_it_was(bench: Bench, device: Device) -> None:
    agent = bench.agent(around=device.around, conditions=Conditions(max_temperature_c=70.0), heartbeat_s=600.0)
    calm = bench.publish(steps=LONG_STEPS)
    bench.coordinator.order(calm.order)
    undisturbed = trained(bench, calm)
    job = bench.publish(steps=LONG_STEPS, round_index=1)
    bench.coordinator.order(job.order)
    wait_until_training(agent)
    pid = agent.trainer.pid
    device.heat(75)
    wait_for_beat(bench, lambda b: b.waiting_for == "temperature")
    assert (agent.state, agent.trainer.is_paused) == ("waiting", True)
    until(lambda: is_still(agent))
    time.sleep(1.0)
    assert job.order.assignment_id not in bench.coordinator.reports
    device.heat(50)
    assert trained(bench, job) == undisturbed
    assert agent.trainer.pid == pid
    assert not agent.trainer.is_paused
    report = bench.coordinator.reports[job.order.assignment_id]
    assert report.steps == LONG_STEPS


def test_agent_begins_again_when_its_paused_trainer_was_killed(bench: Bench, device: Device) -> None:
    agent = bench.agent(around=device.around, conditions=Conditions(max_temperature_c=70.0), heartbeat_s=600.0)
    job = bench.publish(steps=LONG_STEPS)
    bench.coordinator.order(job.order)
    wait_until_training(agent)
    device.heat(75)
    wait_for_beat(bench, lambda b: b.waiting_for == "temperature")
    psutil.Process(agent.trainer.pid).kill()
    until(lambda: not agent.trainer.is_running)
    assert agent.state == "waiting"
    device.heat(50)
    trained(bench, job)


def test_agent_stops_and_drops_work_with_a_paused_trainer(bench: Bench, device: Device) -> None:
    agent = bench.agent(around=device.around, conditions=Conditions(max_temperature_c=70.0), heartbeat_s=600.0)
    job = bench.publish(steps=LONG_STEPS)
    bench.coordinator.order(job.order)
    wait_until_training(agent)
    device.heat(75)
    wait_for_beat(bench, lambda b: b.waiting_for == "temperature")
    trainer = psutil.Process(agent.trainer.pid)
    newer = bench.publish(round_index=1)
    bench.coordinator.order(newer.order)
    until(lambda: not trainer.is_running())
    device.heat(50)
    trained(bench, newer)
    assert job.order.assignment_id not in bench.coordinator.reports


def test_agent_takes_a_training_that_ended_just_before_its_pause(
    bench: Bench, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = bench.agent(around=device.around, conditions=Conditions(max_temperature_c=70.0), heartbeat_s=600.0)
    pause = agent.trainer.pause

    def too_late() -> None:
        pause()
        psutil.Process(agent.trainer.pid).send_signal(signal.SIGCONT)  # as if it had not been stopped in time

    monkeypatch.setattr(agent.trainer, "pause", too_late)
    job = bench.publish(steps=LONG_STEPS)
    bench.coordinator.order(job.order)
    wait_until_training(agent)
    device.heat(75)
    wait_for_beat(bench, lambda b: b.waiting_for == "temperature")
    trained(bench, job)
    until(lambda: agent.state == "idle")
    assert not agent.trainer.is_paused
    assert "refuse" not in bench.coordinator.kinds()


def wait_until_training(agent: Agent) -> None:
    until(lambda: agent.state == "training" and agent.trainer.is_running)
    time.sleep(0.3)


def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

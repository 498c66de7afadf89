"""Memory as the reason: of an error's words, of a kernel's kill, and that no order dies of it twice."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from edge.agent import Agent
from edge.supervisor.conditions import Surroundings
from edge.system.out_of_memory import MemoryKills, died_of_memory, is_out_of_memory
from tests.edge.agent_bench import Bench

MB = 2**20
LIMIT = 2**33
"""Of the supervisor, too, which is the whole test process here."""

GROUP = "memory:/fleet/pi-07"


def machine(root: Path, *, line: str = f"4:{GROUP}", kills: int = 0, limit: int = LIMIT) -> Path:
    """A control group, version 1, with its limit and its count of kills."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(f"9:name=systemd:/\n{line}\n0::/\n")
    (root / "proc/meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable: 12000000 kB\n")
    folder = root / "sys/fs/cgroup/memory/fleet/pi-07"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
    return root


def test_kills_are_counted_once_in_both_versions(tmp_path: Path) -> None:
    kills = MemoryKills(machine(tmp_path / "one", kills=3))
    assert not kills.happened()
    machine(tmp_path / "one", kills=4)
    assert kills.happened()
    assert not kills.happened()
    second = tmp_path / "two"
    (second / "proc/self").mkdir(parents=True)
    (second / "proc/self/cgroup").write_text("0::/user/agent\n")
    events = second / "sys/fs/cgroup/user/agent/memory.events"
    events.parent.mkdir(parents=True)
    events.write_text("low 0\noom 7\noom_kill 5\n")
    assert MemoryKills(second).count() == 5
    assert MemoryKills(tmp_path / "nowhere").count() == 0


@pytest.mark.parametrize(
    ("number", "told", "expected"),
    [
        (signal.SIGKILL, {"is_counted": True}, True),
        (signal.SIGKILL, {"used_bytes": 95, "limit_bytes": 100}, True),
        (signal.SIGKILL, {"used_bytes": 80, "limit_bytes": 100}, False),
        (signal.SIGKILL, {"used_bytes": 80}, False),
        (signal.SIGABRT, {"used_bytes": 80, "data_limit_bytes": 100}, True),
        (signal.SIGABRT, {"used_bytes": 80, "is_counted": True}, False),
        (0, {"used_bytes": 100, "limit_bytes": 100, "data_limit_bytes": 100}, False),
    ],
)
def test_death_is_memorys_when_a_kill_was_counted_or_the_limit_was_reached(
    number: int, told: dict[str, int], expected: bool
) -> None:
    known = {"is_counted": False, "used_bytes": 0, "limit_bytes": 0, "data_limit_bytes": 0, **told}
    assert died_of_memory(number, **known) == expected  # type: ignore[arg-type]


def test_errors_that_say_memory_are_memorys() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("BFCArena: Failed to allocate memory for requested buffer of size 1024"))
    assert is_out_of_memory(RuntimeError("std::bad_alloc"))
    assert not is_out_of_memory(ValueError("shape (3, 4) expected"))


def wait_for_training(agent: Agent, bench: Bench) -> int:
    """The process id of the trainer that has begun."""
    deadline = time.monotonic() + 20
    note = bench.folder / "store" / "training"
    while not note.exists() or not note.stat().st_size or agent.trainer.pid is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return agent.trainer.pid


def test_order_whose_trainer_was_killed_for_memory_is_not_begun_again(bench: Bench, tmp_path: Path) -> None:
    root = machine(tmp_path / "machine")
    agent = bench.agent(around=Surroundings(root=root))
    job = bench.publish(steps=2_000_000)
    bench.coordinator.order(job.order)
    trainer = wait_for_training(agent, bench)
    machine(root, kills=1)
    os.kill(trainer, signal.SIGKILL)
    refusal = bench.coordinator.wait_for("refuse")
    assert refusal.code == "out-of-memory"
    assert refusal.budget_bytes == LIMIT
    assert refusal.peak_bytes > 20 * MB
    assert str(refusal.peak_bytes) in refusal.reason
    assert bench.coordinator.kinds().count("refuse") == 1
    bench.coordinator.order(job.order)
    assert bench.coordinator.wait_for("refuse", count=2) == refusal
    smaller = bench.publish(round_index=1)
    bench.coordinator.order(smaller.order)
    bench.coordinator.wait_for("report", where=lambda r: r.assignment_id == smaller.order.assignment_id)


def test_order_that_killed_the_agent_itself_is_refused_by_its_successor(bench: Bench, tmp_path: Path) -> None:
    """The note of what was being trained stays where an agent is killed, and the group has counted a kill since."""
    root = machine(tmp_path / "machine")
    agent = bench.agent(around=Surroundings(root=root))
    job = bench.publish(steps=2_000_000)
    bench.coordinator.order(job.order)
    wait_for_training(agent, bench)
    note = bench.folder / "store" / "training"
    left = note.read_bytes()
    bench.stop()
    assert agent.state == "stopping"
    assert not note.exists()
    note.write_bytes(left)
    machine(root, kills=1)
    bench.agent(around=Surroundings(root=root), hello=2)
    bench.coordinator.order(job.order)
    refusal = bench.coordinator.wait_for("refuse")
    assert refusal.code == "out-of-memory"
    assert "the agent itself was killed" in refusal.reason

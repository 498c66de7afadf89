"""A Ray cluster of three nodes, which are processes of this machine: what is lost or added in a round changes no bit.

Ray takes a minute to start its nodes; the nodes that are killed are this test's own, by process id.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from coordinator.cli.simulate import simulate_in, with_rounds
from coordinator.config.run_config import RunConfig
from coordinator.run_file.loading import load_config
from coordinator.simulation.assembly import SimulationOptions
from coordinator.simulation.local_training import Trained
from coordinator.simulation.ray_workers import RayWorkers
from coordinator.simulation.workers import Refused

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install ray"),
    pytest.mark.filterwarnings("default"),  # Ray's own
]

DEMO = Path(__file__).parents[3] / "examples" / "digits.toml"
STORE_BYTES = 100 << 20
WAIT_S = 120.0
ROUNDS = 3
ATTEMPTS = 5
HELD_S = 10.0


def federation() -> RunConfig:
    """Three rounds of the demo's eight devices, one pass over the data in each."""
    config = with_rounds(load_config(DEMO), ROUNDS)
    return msgspec.structs.replace(config, training=msgspec.structs.replace(config.training, epochs=1))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The final model of one process, without Ray."""
    folder = tmp_path_factory.mktemp("here") / "run"
    simulate_in(federation(), folder, SimulationOptions(quiet=True))
    return final_model(folder)


def final_model(folder: Path) -> bytes:
    return (folder / "checkpoints" / "final.safetensors").read_bytes()


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head with one processor, and no other node yet."""
    from ray.cluster_utils import Cluster

    made = Cluster()
    try:
        add_node(made, include_dashboard=False, include_log_monitor=False, no_monitor=True)
        yield made
    finally:
        made.shutdown()


def add_node(cluster: Any, **settings: Any) -> int:
    """Process id of a new node's raylet, whose children are the node's workers.

    A node gives up when its own agents take more than 15 s to start, as they do on a busy machine; then another is
    started.
    """
    ports = ("metrics_agent_port", "metrics_export_port", "runtime_env_agent_port")
    reason = ""
    for _ in range(ATTEMPTS):
        with contextlib.ExitStack() as stack:
            taken = [stack.enter_context(socket.create_server(("", 0))) for _ in ports]
            found = {name: int(each.getsockname()[1]) for name, each in zip(ports, taken, strict=True)}
        before = {child.pid for child in psutil.Process().children()}
        try:
            node = cluster.add_node(wait=True, num_cpus=1, object_store_memory=STORE_BYTES, **found, **settings)
        except Exception as error:
            reason = str(error)
            for child in psutil.Process().children():
                if child.pid not in before:
                    child.kill()
            continue
        return int(node.all_processes["raylet"][0].process.pid)
    pytest.skip(f"Ray started no node in {ATTEMPTS} attempts on this busy machine: {reason}")


def trainer_of(raylet: int) -> int:
    """Process id of the trainer on a node; waits until there is one."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        for child in psutil.Process(raylet).children(recursive=True):
            if "RayTrainer" in " ".join(child.cmdline()):
                return child.pid
        time.sleep(0.1)
    raise AssertionError(f"node {raylet} has no trainer after {WAIT_S:g} s")


class Events:
    """Acts in the course of a simulation, and counts.

    Args:
        before: round -> what is done before its first job is handed out, when all trainers that start are there.
        within: round -> what is done when its first result is in.

    Attributes:
        lost: jobs whose trainer ended.
        trainers: those that were there at the end of each round.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        before: Mapping[int, Callable[[], object]] | None = None,
        within: Mapping[int, Callable[[], object]] | None = None,
    ) -> None:
        self.rounds, self.lost, self.trainers = 0, 0, list[int]()
        train, lost = RayWorkers.train, RayWorkers._lost
        events = self

        def watched(workers: RayWorkers, work: Any) -> Iterator[Trained | Refused]:
            events.rounds += 1
            if events.rounds in (before or {}):
                there = list(workers._starting)
                if there:
                    assert len(workers._ray.wait(there, num_returns=len(there), timeout=WAIT_S)[1]) == 0
            (before or {}).get(events.rounds, int)()
            for count, result in enumerate(train(workers, work)):
                if count == 0:
                    (within or {}).get(events.rounds, int)()
                yield result
            events.trainers.append(len(workers._trainers))

        def counted(workers: RayWorkers, *arguments: Any) -> Any:
            events.lost += 1
            return lost(workers, *arguments)

        monkeypatch.setattr(RayWorkers, "train", watched)
        monkeypatch.setattr(RayWorkers, "_lost", counted)


def simulated(folder: Path, address: str) -> dict[str, Any]:
    options = SimulationOptions(quiet=True, workers=3, engine="ray", address=address)
    return simulate_in(federation(), folder, options)


def reports(folder: Path) -> list[int]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["reports"] for line in lines]


@pytest.mark.parametrize("victim", ["trainer", "node"])
def test_what_is_killed_in_a_round_changes_no_bit(
    victim: str, cluster: Any, expected: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = add_node(cluster)
    add_node(cluster)

    def hold_and_kill() -> None:
        # Stopped first, so that it surely has a job when it is killed.
        trainer = trainer_of(node)
        os.kill(trainer, signal.SIGSTOP)
        victims = [trainer] if victim == "trainer" else [node, trainer]
        threading.Timer(HELD_S, lambda: [os.kill(pid, signal.SIGKILL) for pid in victims]).start()

    events = Events(monkeypatch, before={2: hold_and_kill})
    simulated(tmp_path / "run", cluster.address)
    assert final_model(tmp_path / "run") == expected
    assert reports(tmp_path / "run") == [8] * ROUNDS
    assert events.lost == 1


def test_a_node_that_is_added_in_a_round_trains_in_later_ones(
    cluster: Any, expected: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = Events(monkeypatch, before={ROUNDS: int}, within={1: lambda: add_node(cluster)})
    simulated(tmp_path / "run", cluster.address)
    assert final_model(tmp_path / "run") == expected
    assert reports(tmp_path / "run") == [8] * ROUNDS
    assert events.lost == 0
    assert (events.trainers[0], events.trainers[-1]) == (1, 2)

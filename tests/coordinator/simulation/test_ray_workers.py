"""Devices trained by a cluster: jobs of lost trainers are done by others, in the order of the work.

The first tests have a cluster of one process in place of Ray; the last one has Ray, where it is installed.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.cli.simulate import simulate_in, with_rounds
from coordinator.run_file.loading import load_config
from coordinator.simulation.assembly import SimulationOptions
from coordinator.simulation.local_training import SimulatedData
from coordinator.simulation.ray_trainer import OutputsJob, OutputsReply
from coordinator.simulation.ray_workers import MOST_LOSSES, RayWorkers
from edge.contracts.errors import ApportionError, ConfigError
from edge.contracts.tensor_file import encode_tensors

DEMO = Path(__file__).parents[3] / "examples" / "digits.toml"


class Lost(Exception):
    """A trainer ended."""


class Cluster:
    """What of Ray is used.

    Attributes:
        losses: numbers of the calls under which a trainer ends.
        stillborn, never: numbers of the trainers that end as they start, and of those that get no processor.
    """

    exceptions = SimpleNamespace(RayActorError=Lost)

    def __init__(
        self,
        processors: int,
        losses: frozenset[int] = frozenset(),
        *,
        stillborn: frozenset[int] = frozenset(),
        never: frozenset[int] = frozenset(),
    ) -> None:
        self.processors, self.losses, self.calls, self.begun = processors, losses, 0, 0
        self.stillborn, self.never = stillborn, never

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.processors)}

    def put(self, value: Any) -> Any:
        return value

    def remote(self, **_: int) -> Any:
        return lambda kind: SimpleNamespace(remote=self._begin)

    def _begin(self, *_: Any, **__: Any) -> Any:
        self.begun += 1
        number = self.begun
        there = SimpleNamespace(remote=lambda: ("there", number))
        return SimpleNamespace(answer=SimpleNamespace(remote=self._answer), is_there=there, number=number)

    def _answer(self, job: bytes, weights: bytes) -> tuple[int, bytes]:
        self.calls += 1
        return self.calls, job

    def wait(self, references: list[Any], timeout: float | None) -> tuple[list[Any], list[Any]]:
        found = [r for r in references if r[0] != "there" or r[1] not in self.never]
        return found[-1:], []  # the latest first: replies come out of order

    def get(self, reference: tuple[Any, Any]) -> Any:
        number, job = reference
        if number == "there":
            if job in self.stillborn:
                raise Lost
            return True
        if number in self.losses:
            raise Lost
        first = msgspec.msgpack.decode(job, type=OutputsJob).first
        return msgspec.msgpack.encode(OutputsReply(encode_tensors({"y": np.asarray([float(first)], np.float32)})))


def scored(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What a model's ranges of held-out examples gave, in their order."""
    monkeypatch.setitem(sys.modules, "ray", cluster)  # type: ignore[arg-type]
    workers = RayWorkers(3, "", "", "cpu", batch=10)
    x, y = np.zeros((60, 1), np.float32), np.zeros(60, np.int64)
    workers.give(SimulatedData(x, y, x, y))
    model: Any = SimpleNamespace(cut={}, tensors={"w": np.zeros(1, np.float32)})
    return [float(value) for found in workers.outputs([model, model]) for value in found]


def test_replies_are_in_the_order_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scored(Cluster(3), monkeypatch) == [0.0, 20.0, 40.0, 0.0, 20.0, 40.0]


def test_jobs_of_lost_trainers_are_done_by_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(3, frozenset({2, 4}))
    assert scored(cluster, monkeypatch) == [0.0, 20.0, 40.0, 0.0, 20.0, 40.0]
    assert (cluster.begun, cluster.calls) == (5, 8)


def test_a_trainer_that_gets_no_processor_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert scored(Cluster(3, never=frozenset({2})), monkeypatch) == [0.0, 20.0, 40.0, 0.0, 20.0, 40.0]


def test_another_trainer_is_started_for_one_that_ended_as_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(3, stillborn=frozenset({1, 3}))
    assert scored(cluster, monkeypatch) == [0.0, 20.0, 40.0, 0.0, 20.0, 40.0]
    assert cluster.begun == 5


def test_a_cluster_in_which_every_start_fails_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ApportionError, match=f"{MOST_LOSSES} trainers of the cluster ended as they started"):
        scored(Cluster(2, stillborn=frozenset(range(1, 100))), monkeypatch)


def test_a_cluster_that_starts_nothing_in_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ApportionError, match="no trainer of the Ray cluster began within 300 s"):
        scored(Cluster(1, never=frozenset({1})), monkeypatch)


def test_a_job_that_ends_every_trainer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ApportionError, match=f"a job ended {MOST_LOSSES} trainers"):
        scored(Cluster(1, frozenset(range(1, 100))), monkeypatch)


def test_a_cluster_without_processors_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ApportionError, match="the Ray cluster has no CPU for a trainer"):
        scored(Cluster(0), monkeypatch)


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="ray is not installed"):
        RayWorkers(1, "", "", "cpu", batch=10)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install ray")
def test_a_cluster_changes_no_bit(tmp_path: Path) -> None:
    config, found = with_rounds(load_config(DEMO), 1), []
    for name, options in (("here", SimulationOptions(quiet=True)),
                          ("ray", SimulationOptions(quiet=True, workers=2, engine="ray"))):  # fmt: skip
        simulate_in(config, tmp_path / name, options)
        found.append((tmp_path / name / "checkpoints" / "final.safetensors").read_bytes())
    assert found[0] == found[1]

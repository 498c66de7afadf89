"""Simulated devices trained by a Ray cluster: the same work as worker processes do, with machines that come and go.

A process of the cluster that is lost gives its job back to the others; processors that were added are used from the
next round. A trainer gets its first job when it says that it is there: one that waits for a processor holds nothing up.
Ray pickles between its own processes, so a cluster is one that you trust; what passes here is bytes.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np

from coordinator.simulation.local_training import SimulatedData, Trained
from coordinator.simulation.ray_trainer import (
    Job,
    OutputsJob,
    OutputsReply,
    RayReply,
    RayTrainer,
    TrainedReply,
    TrainJob,
)
from coordinator.simulation.sent_outputs import decoded_outputs
from coordinator.simulation.worker import ARRAYS
from coordinator.simulation.worker_messages import FailedReply
from coordinator.simulation.workers import Refused, Work
from coordinator.submodels.record import cut_to_json
from coordinator.submodels.values import Submodel, Tensors
from edge.contracts.errors import ApportionError, ConfigError
from edge.contracts.tensor_file import decode_tensors, encode_tensors

MOST_LOSSES = 5
"""Trainers that one job may lose: what ends five is the job's own doing. As many starts in a row may fail."""

START_WAIT_S = 300.0
"""How long a cluster without a single trainer may take to start one."""

KEPT = 16
"""Mappings of weights that are remembered as placed."""

AHEAD = 4
"""Jobs for each trainer that are handed out before the oldest one is done."""


@dataclass(frozen=True)
class _Task:
    """A job with its weights, which are in the cluster's store; ``losses`` trainers ended under it."""

    number: int
    job: bytes
    weights: Any
    losses: int = 0


class RayWorkers:
    """Hands work to at most ``most`` trainers of a cluster; a context manager that leaves it.

    Implements :class:`coordinator.simulation.workers.Workers`.

    Args:
        config: text of the run file, as trainers read it.
        address: of a cluster that is there; empty: one is started here.
        device: where trainers compute; on ``cuda`` each has a GPU of its own.
        batch: of held-out examples, so many go through a model at a time.

    Raises:
        ConfigError: Ray is not installed, or no cluster is at ``address``.
    """

    def __init__(self, most: int, config: str, address: str, device: str, *, batch: int) -> None:
        try:
            self._ray: ModuleType = importlib.import_module("ray")
        except ImportError as error:
            raise ConfigError(
                ["--engine: ray is not installed"], hint="pip install 'apportion[ray]', here and in the cluster"
            ) from error
        self._most, self._config, self._address, self._device, self._batch = most, config, address, device, batch
        self._trainers: list[Any] = []
        self._starting: dict[Any, Any] = {}
        self._failed_starts = 0
        self._arrays: dict[str, Any] = {}
        self._held_out = 0

    def __enter__(self) -> RayWorkers:
        root = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        try:
            self._ray.init(
                address=self._address or None,
                runtime_env={"env_vars": {"PYTHONPATH": paths}},
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(
                [f"--address: no Ray cluster at '{self._address}' ({error}); ray start --head"]
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        for trainer in [*self._trainers, *self._starting.values()]:
            self._ray.kill(trainer)
        self._ray.shutdown()

    def give(self, data: SimulatedData) -> None:
        """The examples, before anything is asked."""
        self._arrays = {name: self._ray.put(np.asarray(getattr(data, name))) for name in ARRAYS}
        self._held_out = len(data.y_test)

    def train(self, work: Iterable[Work]) -> Iterator[Trained | Refused]:
        """As :meth:`coordinator.simulation.workers.Workers.train`."""
        placed = _Placed(self._ray)

        def jobs() -> Iterator[tuple[Job, Any]]:
            for item in work:
                indices = np.asarray(item.indices, np.int64).tobytes()
                cut, program = cut_to_json(item.submodel.cut), item.submodel.program
                yield (
                    TrainJob(order=item.order, cut=cut, program=program, indices=indices),
                    placed.of(item.submodel.tensors),
                )

        for reply in self._done(jobs()):
            if isinstance(reply, FailedReply):
                yield Refused(reply.reason)
                continue
            assert isinstance(reply, TrainedReply)
            tensors = decode_tensors(reply.tensors, where="a trained device")
            yield Trained(tensors, reply.num_examples, reply.outcome, reply.labels, reply.evaluation)

    def outputs(self, models: Iterable[Submodel]) -> list[np.ndarray]:
        """As :meth:`coordinator.simulation.workers.Workers.outputs`; whole batches go to different trainers."""
        self._fill_up()
        placed, ranges, listed = _Placed(self._ray), list(self._ranges()), list(models)
        jobs = (
            (OutputsJob(cut=cut_to_json(model.cut), first=first, last=last), placed.of(model.tensors))
            for model in listed
            for first, last in ranges
        )
        parts = [_outputs(reply) for reply in self._done(jobs)]
        return [np.concatenate(parts[i : i + len(ranges)]) for i in range(0, len(parts), len(ranges))]

    def _ranges(self) -> Iterator[tuple[int, int]]:
        batches, count = -(-self._held_out // self._batch), max(1, self._there)
        borders = [self._batch * (batches * i // count) for i in range(count)] + [self._held_out]
        return ((first, last) for first, last in itertools.pairwise(borders) if first < last)

    def _done(self, jobs: Iterable[tuple[Job, Any]]) -> Iterator[RayReply]:
        """The replies, in the order of the jobs."""
        self._fill_up()
        tasks, idle = _Tasks(jobs), deque(self._trainers)
        running: dict[Any, tuple[Any, _Task]] = {}
        replies: dict[int, RayReply] = {}
        following = 0
        while True:
            while idle and (task := tasks.take(below=following + AHEAD * self._there)) is not None:
                trainer = idle.popleft()
                running[trainer.answer.remote(task.job, task.weights)] = trainer, task
            if not running and idle:
                return
            for reference in self._next([*running, *self._starting], may_wait=bool(running)):
                if reference in self._starting:
                    idle.extend(self._started(reference))
                    continue
                trainer, task = running.pop(reference)
                try:
                    replies[task.number] = msgspec.msgpack.decode(self._ray.get(reference), type=RayReply)
                    idle.append(trainer)
                except self._ray.exceptions.RayActorError as error:
                    tasks.again.append(self._lost(trainer, task, error))
                    self._fill_up()
            while following in replies:
                yield replies.pop(following)
                following += 1

    @property
    def _there(self) -> int:
        """Trainers, those that start included."""
        return len(self._trainers) + len(self._starting)

    def _next(self, references: list[Any], *, may_wait: bool) -> list[Any]:
        """Those of ``references`` that something came of.

        Raises:
            ApportionError: no trainer works, and none began in time.
        """
        found: list[Any] = self._ray.wait(references, timeout=None if may_wait else START_WAIT_S)[0]
        if not found:
            raise ApportionError(
                f"no trainer of the Ray cluster began within {START_WAIT_S:g} s; other jobs may hold its processors "
                "(ray status); free some, or add a node"
            )
        return found

    def _started(self, reference: Any) -> list[Any]:
        """The trainer that says it is there; none when it was lost before, and another is started.

        Raises:
            ApportionError: as many starts in a row have failed as a job may lose trainers.
        """
        trainer = self._starting.pop(reference)
        try:
            self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            self._failed_starts += 1
            if self._failed_starts >= MOST_LOSSES:
                raise ApportionError(
                    f"{MOST_LOSSES} trainers of the cluster ended as they started, the last with: {error}"
                ) from error
            self._fill_up()
            return []
        self._failed_starts = 0
        self._trainers.append(trainer)
        return [trainer]

    def _lost(self, trainer: Any, task: _Task, error: Exception) -> _Task:
        self._trainers.remove(trainer)
        if task.losses + 1 >= MOST_LOSSES:
            raise ApportionError(f"a job ended {MOST_LOSSES} trainers of the cluster, the last with: {error}")
        return _Task(task.number, task.job, task.weights, task.losses + 1)

    def _fill_up(self) -> None:
        """Start as many trainers as the cluster has processors for, and no more than asked for.

        Raises:
            ApportionError: there is none, and no processor for one.
        """
        kind = "GPU" if self._device == "cuda" else "CPU"
        processors = int(self._ray.cluster_resources().get(kind, 0))
        remote = self._ray.remote(**{"num_gpus" if kind == "GPU" else "num_cpus": 1})(RayTrainer)
        while self._there < min(self._most, processors):
            trainer = remote.remote(self._config, self._device, **self._arrays)
            self._starting[trainer.is_there.remote()] = trainer
        if not self._there:
            raise ApportionError(f"the Ray cluster has no {kind} for a trainer; add a node, or wait for one")


class _Tasks:
    """Jobs as tasks, in their order; those that were lost come first."""

    def __init__(self, jobs: Iterable[tuple[Job, Any]]) -> None:
        self.again: deque[_Task] = deque()
        self._jobs = iter(jobs)
        self._taken = 0

    def take(self, *, below: int) -> _Task | None:
        """The next task, of new ones with a number below ``below``; None: there is none now."""
        if self.again:
            return self.again.popleft()
        if self._taken >= below:
            return None
        found = next(self._jobs, None)
        if found is None:
            return None
        self._taken += 1
        return _Task(self._taken - 1, msgspec.msgpack.encode(found[0]), found[1])


class _Placed:
    """Weights in the cluster's store: the last few mappings of a call once each, as devices of a level share them."""

    def __init__(self, ray: ModuleType) -> None:
        self._ray = ray
        self._known: OrderedDict[int, tuple[Tensors, Any]] = OrderedDict()

    def of(self, tensors: Tensors) -> Any:
        """The reference of ``tensors`` as safetensors bytes."""
        if id(tensors) not in self._known:
            self._known[id(tensors)] = tensors, self._ray.put(encode_tensors(tensors))
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return self._known[id(tensors)][1]


def _outputs(reply: RayReply) -> np.ndarray:
    if isinstance(reply, FailedReply):
        raise ApportionError(f"a model could not be scored: {reply.reason}")
    assert isinstance(reply, OutputsReply)
    return decoded_outputs(reply.tensors)

"""Who trains the simulated devices: this process, or worker processes; what comes of it does not depend on which.

Results come in the order of the work, whatever order they were finished in.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from coordinator.simulation.local_training import LocalTraining, SimulatedData, Trained
from coordinator.simulation.sent_outputs import decoded_outputs
from coordinator.simulation.shared_tensors import Sent, SentTensors, SharedSlots
from coordinator.simulation.worker import ARRAYS
from coordinator.simulation.worker_messages import (
    FailedReply,
    LogitsReply,
    LogitsRequest,
    Reply,
    Request,
    TrainReply,
    TrainRequest,
    read_reply,
)
from coordinator.submodels.record import cut_to_json
from coordinator.submodels.values import Submodel
from edge.contracts.errors import ApportionError, DataError, DeviceRefused
from edge.contracts.plan import WorkOrder
from edge.system.pipe_frames import write_frame

EXIT_WAIT_S = 5.0


@dataclass(frozen=True)
class Work:
    """One order with the submodel it is for and the device's training examples."""

    order: WorkOrder
    submodel: Submodel
    indices: np.ndarray


@dataclass(frozen=True)
class Refused:
    """Why a device did not carry out its order."""

    reason: str


class Workers(Protocol):
    """Trains devices and runs models."""

    def train(self, work: Iterable[Work]) -> Iterator[Trained | Refused]:
        """One result per piece of work, in its order."""

    def outputs(self, models: Iterable[Submodel]) -> list[np.ndarray]:
        """What an evaluator reads of each model on all held-out examples: logits [N, classes, ...] or sums."""


class ThisProcess:
    """Trains one device after the other here."""

    def __init__(self, training: LocalTraining, held_out: int) -> None:
        self._training = training
        self._held_out = held_out

    def train(self, work: Iterable[Work]) -> Iterator[Trained | Refused]:
        """As :meth:`Workers.train`."""
        for item in work:
            submodel = item.submodel
            try:
                yield self._training.train(item.order, submodel.cut, submodel.program, submodel.tensors, item.indices)
            except (DataError, DeviceRefused) as error:
                yield Refused(str(error))

    def outputs(self, models: Iterable[Submodel]) -> list[np.ndarray]:
        """As :meth:`Workers.outputs`."""
        return [self._training.outputs(model.cut, model.tensors, 0, self._held_out) for model in models]


class WorkerProcesses:
    """Hands work to ``count`` children; a context manager that ends them.

    They import while the simulator prepares its first round, and read the examples at the first request.

    Args:
        config: the run file they read.
        folder: where the examples lie before anything is asked, as :func:`write_data` writes them.
        device: where they compute.
        batch: of held-out examples, so many go through a model at a time.
    """

    def __init__(self, count: int, config: Path, folder: Path, device: str, *, batch: int) -> None:
        self._command = [sys.executable, "-m", "coordinator.simulation.worker", str(config), str(folder), device]
        self._count = count
        self._folder, self._held_out, self._batch = folder, 0, batch
        self._children: list[subprocess.Popen[bytes]] = []
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="worker")
        self._slots = SharedSlots()
        self._sent = SentTensors(self._slots, most=2 * count)

    def __enter__(self) -> WorkerProcesses:
        root = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        for _ in range(self._count):
            child = subprocess.Popen(
                [*self._command, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": paths},
            )
            self._children.append(child)
            self._idle.put(child)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not None:
            for child in self._children:
                child.kill()  # an unwinding simulator waits for no one
        self._threads.shutdown(cancel_futures=True)
        for child in self._children:
            assert child.stdin is not None
            assert child.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.close()
            try:
                child.wait(EXIT_WAIT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            child.stdout.close()
        self._slots.__exit__()

    def give(self, data: SimulatedData) -> None:
        """The examples, before anything is asked."""
        write_data(data, self._folder)
        self._held_out = len(data.y_test)

    def train(self, work: Iterable[Work]) -> Iterator[Trained | Refused]:
        """As :meth:`Workers.train`; twice as much work is under way as there are children, and no more."""
        waiting: deque[Future[Trained | Refused]] = deque()
        for item in work:
            waiting.append(self._threads.submit(self._train, item, self._sent.place(item.submodel.tensors)))
            if len(waiting) >= 2 * self._count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
        self._sent.drop()

    def outputs(self, models: Iterable[Submodel]) -> list[np.ndarray]:
        """As :meth:`Workers.outputs`; whole batches go to different children."""
        batches = -(-self._held_out // self._batch)
        borders = [self._batch * (batches * i // self._count) for i in range(self._count)] + [self._held_out]
        asked = []
        for model in models:
            cut, parts = cut_to_json(model.cut), []
            for first, last in itertools.pairwise(borders):
                if first < last:
                    sent = self._sent.place(model.tensors)
                    request = LogitsRequest(cut=cut, weights=sent.placed, first=first, last=last)
                    parts.append(self._threads.submit(self._outputs, request, sent))
            asked.append(parts)
        found = [np.concatenate([part.result() for part in parts]) for parts in asked]
        self._sent.drop()
        return found

    def _train(self, item: Work, sent: Sent) -> Trained | Refused:
        slot = self._slots.take()
        reply = self._ask(
            TrainRequest(
                order=item.order,
                cut=cut_to_json(item.submodel.cut),
                program=item.submodel.program,
                weights=sent.placed,
                update=slot.address,
                indices=np.asarray(item.indices, np.int64).tobytes(),
            )
        )
        sent.more(-1)
        if isinstance(reply, FailedReply):
            self._slots.give_back(slot)
            return Refused(reply.reason)
        assert isinstance(reply, TrainReply)
        tensors = self._slots.read(slot, reply.update)
        return Trained(tensors, reply.num_examples, reply.outcome, reply.labels, reply.evaluation)

    def _outputs(self, request: LogitsRequest, sent: Sent) -> np.ndarray:
        reply = self._ask(request)
        sent.more(-1)
        return _outputs(reply)

    def _ask(self, request: Request) -> Reply:
        child = self._idle.get()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            write_frame(child.stdin, request)
            reply = read_reply(child.stdout)
        except BrokenPipeError:
            reply = None
        finally:
            self._idle.put(child)
        if reply is None:
            raise ApportionError(
                f"worker process {child.pid} ended with status {child.wait()} in the middle of its work; its messages "
                "are above; use fewer --workers if memory ran out"
            )
        return reply


def write_data(data: SimulatedData, folder: Path) -> None:
    """Put the examples where worker processes map them from."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", getattr(data, name), allow_pickle=False)


def _outputs(reply: Reply) -> np.ndarray:
    if isinstance(reply, FailedReply):
        raise ApportionError(f"a model could not be scored: {reply.reason}")
    assert isinstance(reply, LogitsReply)
    return decoded_outputs(reply.tensors)

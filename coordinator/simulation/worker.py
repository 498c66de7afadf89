"""``python -m coordinator.simulation.worker``: a child process that trains simulated devices, one order at a time.

It is given a run file and the folder of the run's examples, reads requests from stdin and answers on stdout until its
parent closes the pipe or dies.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from coordinator.config.run_config import TORCH, RunConfig
from coordinator.exporting.base_file import computing_module
from coordinator.exporting.cut_exporter import CutExporter, class_names
from coordinator.rounds.evaluators import run_evaluator
from coordinator.run_file.loading import load_config
from coordinator.simulation.allocator import keep_freed_memory
from coordinator.simulation.local_training import LocalTraining, SimulatedData, repeatable_torch
from coordinator.simulation.runtime_artifacts import RuntimeArtifacts
from coordinator.simulation.sent_outputs import encoded_outputs
from coordinator.simulation.shared_tensors import MappedSlots
from coordinator.simulation.worker_messages import (
    FailedReply,
    LogitsReply,
    LogitsRequest,
    Reply,
    Request,
    TrainReply,
    TrainRequest,
    read_request,
)
from coordinator.submodels.precision import DTYPES
from coordinator.submodels.record import cut_from_json
from edge.contracts.errors import ApportionError
from edge.system.pipe_frames import write_frame
from edge.trainer import follow_parent

ARTIFACTS = "artifacts"
"""Folder in a run's directory."""
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def local_training(
    config: RunConfig, data: SimulatedData, device: str, *, artifacts: Path | None = None
) -> LocalTraining:
    """The training of a run's simulated devices, with torch set so that results repeat.

    Args:
        artifacts: folder of those that a device runtime's steps were exported to; None: each process exports its own.
    """
    threads = config.runtime.threads_here
    repeatable_torch(threads, device)
    keep_freed_memory()
    exporter = CutExporter(config)
    is_torch = config.simulation.runtime == TORCH
    return LocalTraining(
        lambda: computing_module(config, device),
        exporter.step,
        data,
        classes=class_names(config),
        evaluator=lambda x, y, is_first: run_evaluator(config, x, y, device=device, has_questions=is_first),
        device=device,
        precision=DTYPES[config.simulation.precision],
        artifacts=None if is_torch else RuntimeArtifacts(exporter, config, artifacts, threads=threads),
    )


def mapped_data(folder: Path) -> SimulatedData:
    """The examples in ``folder``, mapped, so that all workers share their memory."""
    return SimulatedData(**{name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS})


def serve(training: LocalTraining, requests: IO[bytes], replies: BinaryIO) -> None:
    """Answer until there are no more requests."""
    slots = MappedSlots()
    while (request := read_request(requests)) is not None:
        try:
            reply = answer(training, request, slots)
        except ApportionError as error:
            reply = FailedReply(error.code, str(error))
        except MemoryError as error:
            reply = FailedReply("device-refused", f"out of memory: {error}; use fewer --workers")
        write_frame(replies, reply)


def answer(training: LocalTraining, request: Request, slots: MappedSlots) -> Reply:
    """What ``request`` asked for."""
    cut = cut_from_json(request.cut)
    weights = slots.read(request.weights)
    if isinstance(request, LogitsRequest):
        outputs = training.outputs(cut, weights, request.first, request.last)
        return LogitsReply(encoded_outputs(outputs))
    assert isinstance(request, TrainRequest)
    indices = np.frombuffer(request.indices, np.int64)
    placed, out = slots.room(request.update, training.layout(request.order, cut, request.program))
    trained = training.train(request.order, cut, request.program, weights, indices, out=out)
    return TrainReply(
        outcome=trained.outcome,
        num_examples=trained.num_examples,
        update=placed,
        labels=trained.labels,
        evaluation=trained.evaluation,
    )


def main(arguments: list[str]) -> int:
    """Serve the process ``arguments`` name last; before it the run file, the examples' folder and torch's device."""
    config, folder, device, parent = arguments
    follow_parent(int(parent))
    # Interrupts from a terminal reach the whole process group; the simulator decides what they mean.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A model of the user's may print: keep the pipe to ourselves and give everybody else stderr.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb")
    if requests.peek(1):  # comes when the examples are there
        run_file = Path(config)
        artifacts = run_file.parent / ARTIFACTS
        training = local_training(load_config(run_file), mapped_data(Path(folder)), device, artifacts=artifacts)
        serve(training, requests, replies)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What a process of a Ray cluster does for a simulation: it trains devices and runs models, as a worker process does.

Jobs and replies are msgpack, tensors safetensors; Ray carries them as bytes. The examples come as arrays of its store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from coordinator.simulation.sent_outputs import encoded_outputs
from coordinator.simulation.worker_messages import FailedReply
from coordinator.submodels.values import DeviceProgram
from edge.contracts.errors import ApportionError
from edge.contracts.evaluation import Evaluation
from edge.contracts.plan import WorkOrder
from edge.contracts.tensor_file import decode_tensors, encode_tensors
from edge.training.steps import Outcome


class TrainJob(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Carry out an order; ``cut`` are the records as JSON values, ``indices`` int64 bytes."""

    order: WorkOrder
    cut: dict[str, Any]
    program: DeviceProgram
    indices: bytes


class OutputsJob(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Run a submodel on the held-out examples [first, last)."""

    cut: dict[str, Any]
    first: int
    last: int


class TrainedReply(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An order carried out; ``tensors`` are safetensors bytes."""

    outcome: Outcome
    num_examples: int
    tensors: bytes
    labels: tuple[int, ...] | None = None
    evaluation: Evaluation | None = None


class OutputsReply(msgspec.Struct, frozen=True, tag=True):
    """Safetensors bytes of what an evaluator reads."""

    tensors: bytes


Job = TrainJob | OutputsJob
RayReply = TrainedReply | OutputsReply | FailedReply


class RayTrainer:
    """Lives in a process of the cluster, with the run's examples mapped from its store.

    Args:
        config: text of the run file, every key spelled out.
        device: where torch computes.
        arrays: of :class:`coordinator.simulation.local_training.SimulatedData`.
    """

    def __init__(self, config: str, device: str, **arrays: np.ndarray) -> None:
        from coordinator.run_file.loading import load_config_text
        from coordinator.simulation.local_training import SimulatedData
        from coordinator.simulation.worker import local_training

        settings = load_config_text(config, folder=Path.cwd())
        self._training = local_training(settings, SimulatedData(**arrays), device)

    def is_there(self) -> bool:
        """True, once the process has started and read its run file."""
        return True

    def answer(self, job: bytes, weights: bytes) -> bytes:
        """What ``job`` asked for, with ``weights`` as safetensors."""
        try:
            reply = self._answered(msgspec.msgpack.decode(job, type=Job), weights)
        except ApportionError as error:
            reply = FailedReply(error.code, str(error))
        return msgspec.msgpack.encode(reply)

    def _answered(self, job: Job, weights: bytes) -> RayReply:
        from coordinator.submodels.record import cut_from_json

        cut, tensors = cut_from_json(job.cut), decode_tensors(weights, where="weights of a job")
        if isinstance(job, OutputsJob):
            outputs = self._training.outputs(cut, tensors, job.first, job.last)
            return OutputsReply(encoded_outputs(outputs))
        indices = np.frombuffer(job.indices, np.int64)
        done = self._training.train(job.order, cut, job.program, tensors, indices, is_copied=False)
        return TrainedReply(
            outcome=done.outcome,
            num_examples=done.num_examples,
            tensors=encode_tensors({name: np.ascontiguousarray(value) for name, value in done.tensors.items()}),
            labels=done.labels,
            evaluation=done.evaluation,
        )

"""What the simulator and its worker processes say to each other: length-prefixed msgpack over stdin and stdout.

Tensors are in memory that both share (:mod:`coordinator.simulation.shared_tensors`). Both ends are the same release on
the same machine, so there is no version.
"""

from __future__ import annotations

from typing import IO, Any

import msgspec

from coordinator.simulation.shared_tensors import Placed
from coordinator.submodels.values import DeviceProgram
from edge.contracts.evaluation import Evaluation
from edge.contracts.plan import WorkOrder
from edge.system.pipe_frames import read_frame
from edge.training.steps import Outcome

MAX_FRAME_BYTES = 1 << 36
"""A reply carries the outputs of a model on many examples."""


class TrainRequest(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Carry out an order.

    Attributes:
        cut: the LayerCut records as JSON values.
        weights: of the submodel.
        update: address of the slot that takes the trained tensors.
        indices: int64 bytes, the device's training examples.
    """

    order: WorkOrder
    cut: dict[str, Any]
    program: DeviceProgram
    weights: Placed
    update: str
    indices: bytes


class LogitsRequest(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Run a submodel on the held-out examples [first, last)."""

    cut: dict[str, Any]
    weights: Placed
    first: int
    last: int


class TrainReply(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An order carried out."""

    outcome: Outcome
    num_examples: int
    update: Placed
    labels: tuple[int, ...] | None = None
    evaluation: Evaluation | None = None


class LogitsReply(msgspec.Struct, frozen=True, tag=True):
    """Safetensors bytes of one tensor, ``logits``."""

    tensors: bytes


class FailedReply(msgspec.Struct, frozen=True, tag=True):
    """What was asked for could not be done; ``code`` is an error's code."""

    code: str
    reason: str


Request = TrainRequest | LogitsRequest
Reply = TrainReply | LogitsReply | FailedReply


def read_request(stream: IO[bytes]) -> Request | None:
    """The simulator's next message; None at its end."""
    data = read_frame(stream, limit=MAX_FRAME_BYTES)
    return None if data is None else msgspec.msgpack.decode(data, type=Request)


def read_reply(stream: IO[bytes]) -> Reply | None:
    """A worker's answer; None when it is gone."""
    data = read_frame(stream, limit=MAX_FRAME_BYTES)
    return None if data is None else msgspec.msgpack.decode(data, type=Reply)

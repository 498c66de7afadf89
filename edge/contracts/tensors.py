"""What a tensor is on the wire and in a graph: name, shape, dtype, role, and the check of a set against its specs.

NumPy is imported inside functions: the supervisor of an agent reads manifests without it.
Encoding to safetensors bytes lives in :mod:`edge.contracts.tensor_file`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Role = Literal[
    "parameter",
    "frozen",
    "mapped",
    "rows",
    "buffer",
    "slot",
    "accumulator",
    "input",
    "features",
    "target",
    "label_mask",
    "grad_mask",
    "teacher",
    "hyper",
    "draw",
    "loss",
    "metric",
]
DType = Literal["float32", "float16", "int64", "int32", "int8", "uint8", "bool"]

BATCH: Literal["batch"] = "batch"
"""The one symbolic dimension: examples in a batch."""

DTYPE_BYTES: dict[str, int] = {
    "float32": 4,
    "float16": 2,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}

STATE_ROLES: frozenset[str] = frozenset({"parameter", "frozen", "buffer", "slot", "accumulator"})
"""Roles whose value is carried from step to step by the trainer; all others are fed or read per step."""


TEACHER = "#teacher"
"""``<name>#teacher`` is the received value of tensor ``<name>``; a session takes it from the order's ``<name>``."""


CONTROL = "#control"
"""``<name>#control`` is the server's control variate of parameter ``<name>``, in the order's weights."""


CORRECTION = "#correction"
"""``<name>#correction`` is what every step adds to the gradient of ``<name>``, the server's control variate less the
device's own; of role ``teacher``."""


FEATURES = "features"
"""Program of an artifact, and the tensor it gives for each example: what enters the first layer that is trained. Steps
read the tensor in place of the input, so that the frozen layers below run once per example and not once per step."""


GRADIENT_SUM = "#gradient"
"""``<name>#gradient`` is the sum of the gradients of ``<name>`` over the micro-batches of the step so far, a slot."""


ROWS = "#rows:"
"""``<table>#rows:<index>``, of role ``rows``: rows of mapped tensor ``<table>`` at the whole numbers of ``<index>``,
which a session reads from the base's file; below 0 stands for row 0."""


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """One named tensor of an artifact.

    Attributes:
        name: module path (``layer1.0.conv1.weight``), slots ``path#momentum``, factors ``<layer>.u`` and ``<layer>.v``,
            draws ``<layer>#draw``.
        shape: sizes in order; ``"batch"`` marks the dynamic batch dimension.
        dtype: element type.
        role: what the tensor is to the training step.
        capacity: of a masked parameter, its slots and its mask: a device holds nothing but the entries that the mask
            keeps, and of those at most so many; 0: it holds all entries. On the wire nothing is different.
        probability: of a ``bool`` draw, that an element is true. A ``float32`` draw is uniform in [0, 1).
    """

    name: str
    shape: tuple[int | Literal["batch"], ...]
    dtype: DType
    role: Role
    capacity: int = 0
    probability: float = 0.0

    def element_count(self, batch: int = 1) -> int:
        """Number of elements, with the batch dimension taken as ``batch``."""
        count = 1
        for size in self.shape:
            count *= batch if size == BATCH else int(size)
        return count

    def byte_count(self, batch: int = 1) -> int:
        """Size in bytes, with the batch dimension taken as ``batch``."""
        return self.element_count(batch) * DTYPE_BYTES[self.dtype]


def is_carried(spec: TensorSpec) -> bool:
    """Whether the tensor's value stays with a session between steps instead of being fed with each."""
    return spec.role in STATE_ROLES or spec.role in ("grad_mask", "teacher")


def concrete_shape(spec: TensorSpec, batch: int = 1) -> tuple[int, ...]:
    """The shape with the batch dimension taken as ``batch``."""
    return tuple(batch if size == BATCH else int(size) for size in spec.shape)


def by_role(specs: Iterable[TensorSpec], *roles: Role) -> tuple[TensorSpec, ...]:
    """The specs with one of the given roles, in their order."""
    return tuple(s for s in specs if s.role in roles)

"""What every format gives for one module and step."""

from __future__ import annotations

from dataclasses import dataclass

from edge.contracts.manifest import Program
from edge.contracts.tensors import TensorSpec
from export.memory_plan import MemoryPlan
from profiles.step_work import StepWork


@dataclass(frozen=True)
class WrittenPrograms:
    """Files by name, the programs in them, every tensor they name, and what a training step costs.

    Attributes:
        macs: of one forward pass of one example.
        work: of one training step of the specification's batch; None where the step was not traced whole.
    """

    files: dict[str, bytes]
    programs: tuple[Program, ...]
    tensors: tuple[TensorSpec, ...]
    macs: int
    memory: MemoryPlan
    work: StepWork | None = None

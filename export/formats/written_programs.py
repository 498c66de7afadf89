"""What every format gives for one module and step."""

from __future__ import annotations

from dataclasses import dataclass

from edge.contracts.manifest import Program
from edge.contracts.tensors import TensorSpec
from export.formats.memory_plan import MemoryPlan


@dataclass(frozen=True)
class WrittenPrograms:
    """Files by name, the programs in them, every tensor they name, and what a training step costs."""

    files: dict[str, bytes]
    programs: tuple[Program, ...]
    tensors: tuple[TensorSpec, ...]
    macs: int
    memory: MemoryPlan

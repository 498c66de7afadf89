"""The format of browsers: the graphs of :class:`OnnxStep`, run by ONNX Runtime's WebAssembly build, with its memory.

Operators and kernels are those of the native runtime, so the gate and the self-test run there.
"""

from __future__ import annotations

from export.formats.memory_plan import MemoryPlan
from export.formats.onnx_step.format import OnnxStep

_ARENA_SHARE, _NODE_BYTES = 1.1, 3072


class OnnxWeb(OnnxStep):
    """Writes what :class:`OnnxStep` writes."""

    minimum_runtime_version = "1.30.0"

    def predicted_peak_bytes(self, memory: MemoryPlan) -> int:
        """Peak of the runtime's linear memory and of the tensors beside it, above the runtime just loaded."""
        return int(_ARENA_SHARE * memory.live) + _NODE_BYTES * memory.nodes

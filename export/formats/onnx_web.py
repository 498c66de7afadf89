"""The format of browsers: :class:`OnnxStep`'s for ONNX Runtime's WebAssembly build, with its kernels and its memory.

The native runtime has the same operators, so the gate and the self-test run there, on the very graphs that are shipped.
"""

from __future__ import annotations

from dataclasses import replace

import onnx
from torch import nn

from export.formats.onnx_step.format import OnnxStep
from export.formats.web_graph import for_web
from export.memory_plan import REUSING, MemoryPlan
from export.training_step import StepSpec
from export.written_programs import WrittenPrograms

_START_BYTES, _GROWTH, _MOST_GROWTH_BYTES = 16 << 20, 1.2, 96 << 20
"""The runtime's memory: its size when loaded, which holds the runtime itself; the factor it grows by; and the most it
then grows by, unless more is asked for at once. These are the build's own."""

_LIVE_SHARE, _NODE_BYTES = 1.04, 2000
"""Of a step, in that memory: live tensors with what lies between them, and the graph. Measured in Chromium 156 with
onnxruntime-web 1.30 on 13 artifacts at batch 32, see docs/measurements/2026-11-20-web.md."""


class OnnxWeb(OnnxStep):
    """Writes the programs of :class:`OnnxStep`, rewritten for the kernels they meet."""

    name = "onnx_web"
    minimum_runtime_version = "1.30.0"
    writes_over = False
    reusing = REUSING
    features = OnnxStep.features - {"task", "cached_features", "kept_activations"}
    """The page feeds one input and a class for each example, and keeps no features; in float16 nothing was measured."""

    def write(self, module: nn.Module, spec: StepSpec) -> WrittenPrograms:
        """As :meth:`OnnxStep.write`; the plan of its memory holds for the rewritten graphs too."""
        written = super().write(module, spec)
        files = {name: for_web(onnx.load_from_string(data)) for name, data in written.files.items()}
        return replace(written, files={n: bytes(m.SerializeToString(deterministic=True)) for n, m in files.items()})

    def predicted_peak_bytes(self, memory: MemoryPlan) -> int:
        """Peak of the runtime's memory and of the files beside it, above the runtime just loaded.

        The memory grows by steps and never shrinks; beside it lie the weights of the next order or the update's
        tensors and its file, which are taken to be as large as the state.
        """
        needed = _START_BYTES + _LIVE_SHARE * memory.live + _NODE_BYTES * memory.nodes
        return int(_grown(needed)) - _START_BYTES + memory.state


def _grown(needed: float) -> float:
    """Size of the runtime's memory once ``needed`` bytes fit."""
    size = float(_START_BYTES)
    while size < needed:
        size = min(_GROWTH * size, size + _MOST_GROWTH_BYTES)
    return size

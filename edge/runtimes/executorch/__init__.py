"""ExecuTorch: its wheel's C++ libraries, and beside them training kernels and a session of our own in C++."""

from __future__ import annotations

from edge.runtimes.traits import RuntimeTraits

TRAITS = RuntimeTraits(
    format="executorch_program",
    install="make runtime-executorch",
    distribution="executorch",
    module="executorch",
    has_wheels=True,
    native_build="edge.runtimes.executorch.build",
    native_trainer="edge.runtimes.executorch.installed",
    usual_idle_bytes=41 << 20,  # measured, x86-64: 40.8 MB (docs/runtimes.md)
    agent_bytes=29 << 20,  # with the trainer without Python
    inference="pte",
    why_no_language="its programs hold weights as float32 in memory of their own, and map no base",
)

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
    inference="pte",
    why_no_language="its programs hold weights as float32 in memory of their own, and map no base",
)

"""ONNX Runtime's WebAssembly build in a browser: ``edge/web`` is its agent, here is what the others must know of it."""

from __future__ import annotations

from edge.runtimes.traits import RuntimeTraits

# Threads: measured, docs/measurements/2026-11-20-web.md: two take 0.56 to 0.60 of one's time.
TRAITS = RuntimeTraits(
    format="onnx_web",
    is_in_browser=True,
    checked_by="onnxruntime",
    unmeasured_threads=2,
    why_no_language="a page has no file to map, and a base in its memory is more than phones give one",
)

"""Stock ONNX Runtime: every method, on every processor."""

from __future__ import annotations

from edge.runtimes.traits import RuntimeTraits

TRAITS = RuntimeTraits(
    format="onnx_step",
    install="pip install 'apportion[onnxruntime]'",
    distribution="onnxruntime",
    module="onnxruntime",
    has_wheels=True,
    inference="onnx",
    language_format="onnx_language",
)

"""ONNX Runtime Training: a wheel that writes over stock ONNX Runtime; there is none for aarch64."""

from __future__ import annotations

from edge.runtimes.traits import RuntimeTraits

TRAITS = RuntimeTraits(
    format="ort_training",
    install="make runtime-onnxruntime-training",
    distribution="onnxruntime-training-cpu",
    module="onnxruntime",
)

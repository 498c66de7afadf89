"""The operator table: one file per family; importing the package registers them all."""

from export.formats.onnx_step.operators import (
    convolution,
    elementwise,
    gated_recurrent,
    normalization,
    pooling,
    products,
    recurrent,
    reductions,
    shapes,
)

__all__ = [
    "convolution",
    "elementwise",
    "gated_recurrent",
    "normalization",
    "pooling",
    "products",
    "recurrent",
    "reductions",
    "shapes",
]

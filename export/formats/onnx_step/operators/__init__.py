"""The operator table: one file per family; importing the package registers them all."""

from export.formats.onnx_step.operators import (
    convolution,
    elementwise,
    normalization,
    pooling,
    products,
    recurrent,
    reductions,
    shapes,
)

__all__ = ["convolution", "elementwise", "normalization", "pooling", "products", "recurrent", "reductions", "shapes"]

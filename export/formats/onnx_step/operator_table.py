"""The whole operator table, and a traced program translated with it."""

from __future__ import annotations

import onnx

from export.capture import Capture
from export.formats.onnx_step.operators import (  # noqa: F401  (each registers its operators)
    activations,
    convolution,
    elementwise,
    gated_recurrent,
    indexing,
    kept_activations,
    normalization,
    pooling,
    products,
    recurrent,
    reductions,
    shapes,
    windows,
)
from export.formats.onnx_step.translation import Translation


def translate(program: Capture, *, batch_parts: int = 1) -> onnx.ModelProto:
    """A traced program as an ONNX model.

    Args:
        batch_parts: into how many parts the batch is split where all of it at once would take copies of large images.

    Raises:
        ExportRefused: naming the layer of the first operation without a translation.
    """
    return Translation(program, batch_parts=batch_parts).model()

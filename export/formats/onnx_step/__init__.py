"""Training steps as plain ONNX graphs for stock ONNX Runtime: standard operators, no weights inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

    from export.capture import Capture


def translate(program: Capture, *, batch_parts: int = 1) -> onnx.ModelProto:
    """A traced program as an ONNX model.

    Args:
        batch_parts: into how many parts the batch is split where all of it at once would take copies of large images.

    Raises:
        ExportRefused: naming the layer of the first operation without a translation.
    """
    import export.formats.onnx_step.operators  # noqa: F401  (registers the operator table)
    from export.formats.onnx_step.translation import Translation

    return Translation(program, batch_parts=batch_parts).model()

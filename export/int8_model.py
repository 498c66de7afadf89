"""An inference model with int8 weights and activations: a quarter of the bytes, and integer kernels where there are.

Weights are rounded per output channel, activations by the ranges that examples gave, both in int8. The file has pairs
of QuantizeLinear and DequantizeLinear around each operator.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

BATCH = 64


def write_int8_model(source: Path, out: Path, calibration: np.ndarray) -> None:
    """Write ``out``: the float32 model at ``source`` in int8, ranges from ``calibration`` [N, ...], program inputs.

    Equal models and examples give equal bytes.
    """
    import onnx

    class Reader:
        """Gives the examples in batches, then None, as the quantizer asks for them."""

        def __init__(self, name: str) -> None:
            self._batches: Iterator[np.ndarray] = iter(
                [calibration[i : i + BATCH] for i in range(0, len(calibration), BATCH)]
            )
            self._name = name

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self._batches, None)
            return None if batch is None else {self._name: batch}

    (name,) = (value.name for value in onnx.load(str(source)).graph.input)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)  # it tells of every tensor without a range
    try:
        with tempfile.TemporaryDirectory(prefix="apportion-int8-") as folder:
            prepared = Path(folder) / "prepared.onnx"
            tools, kinds = _quantization(), _quantization().QuantType
            _quantization("shape_inference").quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
            tools.quantize_static(
                str(prepared),
                str(out),
                Reader(name),
                quant_format=tools.QuantFormat.QDQ,
                activation_type=kinds.QInt8,
                weight_type=kinds.QInt8,
                per_channel=True,
            )
    finally:
        root.setLevel(level)


def _quantization(part: str = "") -> Any:
    """The quantizer of ONNX Runtime, or a part of it."""
    import onnxruntime as ort

    return import_module(".".join(filter(None, [ort.__name__, "quantization", part])))

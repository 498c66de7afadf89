"""A language model that writes, on stock ONNX Runtime: what was computed of the symbols before is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort

from edge.contracts.errors import DeviceRefused
from edge.runtimes.graph_file import check_is_whole
from edge.runtimes.onnxruntime.file_order import ask_for_file_order
from edge.runtimes.onnxruntime.session import require_release

_PAST, _PRESENT = "past_key_values.", "present."


def load(path: Path, minimum_version: str, *, threads: int, weights: str) -> OnnxWriter:
    """The model at ``path``, whose weights lie in the file called ``weights`` beside it.

    Raises:
        DeviceRefused: the runtime is older than ``minimum_version``, or cannot load the model.
    """
    require_release(minimum_version)
    return OnnxWriter(path, threads, weights)


class OnnxWriter:
    """Implements :class:`edge.inference.writer.WriterSession`."""

    def __init__(self, path: Path, threads: int, weights: str) -> None:
        options = ort.SessionOptions()
        # Weights stay mapped, and an int8 matrix is float32 only where it is read: in the runtime's own order all of a
        # GPT-2 are so at once, 900 MB.
        ask_for_file_order(options)
        options.enable_mem_pattern = False
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        check_is_whole(path, path.name, beside=weights)
        try:
            self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime raises pybind classes without a common base of its own
            raise DeviceRefused(f"onnxruntime {ort.__version__} cannot load {path.name}: {error}") from error
        self._past = {v.name: v.shape for v in self._session.get_inputs() if v.name.startswith(_PAST)}
        self._outputs = [value.name for value in self._session.get_outputs()]
        self._kept: dict[str, ort.OrtValue] = {}
        self.forget()

    def forget(self) -> None:
        """As :meth:`edge.inference.writer.WriterSession.forget`."""
        empty = {name: np.zeros((1, shape[1], 0, shape[3]), np.float32) for name, shape in self._past.items()}
        self._kept = {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in empty.items()}

    def logits(self, symbols: np.ndarray) -> np.ndarray:
        """As :meth:`edge.inference.writer.WriterSession.logits`."""
        row = np.ascontiguousarray(symbols, np.int64)[None]
        feeds = {"input_ids": ort.OrtValue.ortvalue_from_numpy(row), **self._kept}
        try:
            values = self._session.run_with_ort_values(self._outputs, feeds)
        except Exception as error:  # as above
            raise DeviceRefused(f"the model failed in onnxruntime: {error}; give it fewer symbols") from error
        named = dict(zip(self._outputs, values, strict=True))
        self._kept = {name: named[_PRESENT + name.removeprefix(_PAST)] for name in self._past}
        found: np.ndarray = named["logits"].numpy()[0]
        return found

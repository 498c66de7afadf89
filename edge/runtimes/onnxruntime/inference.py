"""Inference models on stock ONNX Runtime: one input, one output, weights inside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edge.contracts.errors import DeviceRefused
from edge.runtimes.graph_file import check_is_whole
from edge.runtimes.onnxruntime.session import require_release


def load(
    path: Path, minimum_version: str, *, threads: int, own: Mapping[str, np.ndarray] | None = None
) -> OnnxInference:
    """The model at ``path``, tensors of ``own`` in the place of its weights of those names.

    Raises:
        DeviceRefused: the runtime is older than ``minimum_version``, or cannot load the model.
    """
    require_release(minimum_version)
    return OnnxInference(path, threads, own or {})


class OnnxInference:
    """Implements :class:`edge.inference.predictor.InferenceSession`."""

    def __init__(self, path: Path, threads: int, own: Mapping[str, np.ndarray]) -> None:
        options = ort.SessionOptions()
        self._own = {name: ort.OrtValue.ortvalue_from_numpy(np.array(value)) for name, value in own.items()}
        for name, value in self._own.items():  # the session reads them where they lie
            options.add_initializer(name, value)
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        check_is_whole(path, path.name)
        try:
            self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime raises pybind classes without a common base of its own
            raise DeviceRefused(f"onnxruntime {ort.__version__} cannot load {path.name}: {error}") from error
        (self._input,) = (value.name for value in self._session.get_inputs())

    def logits(self, inputs: np.ndarray) -> np.ndarray:
        """As :meth:`edge.inference.predictor.InferenceSession.logits`."""
        try:
            return np.asarray(self._session.run(None, {self._input: inputs})[0])
        except Exception as error:  # as above
            raise DeviceRefused(f"the model failed in onnxruntime: {error}; give it fewer examples") from error

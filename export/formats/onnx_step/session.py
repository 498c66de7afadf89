"""ONNX Runtime as the exporter uses it to check its own graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx


class GraphSession:
    """An ONNX model ready to run on one thread; ``extra`` values of the graph become outputs too."""

    def __init__(self, model: onnx.ModelProto | bytes, extra: Sequence[str] = ()) -> None:
        import onnxruntime as ort

        proto = onnx.load_from_string(model) if isinstance(model, bytes) else model
        if extra:
            widened = onnx.ModelProto()
            widened.CopyFrom(proto)
            widened.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in extra)
            proto = widened
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = False
        options.log_severity_level = 3
        self._session: Any = ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
        self.inputs = [i.name for i in self._session.get_inputs()]
        self.outputs = [o.name for o in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs by name; of ``feeds`` only what the graph takes is read."""
        values = self._session.run(self.outputs, {name: feeds[name] for name in self.inputs})
        return dict(zip(self.outputs, values, strict=True))

"""ONNX Runtime as the exporter uses it to check its own graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from edge.contracts.errors import ParityError
from edge.contracts.tensors import BATCH, ROWS
from edge.runtimes.mapped_rows import rows_of
from export.program_inputs import NEXT

SetOptions = Callable[[Any], None]
LOADING = {"disabled_optimizers": ["CommonSubexpressionElimination"]}
"""As a device's session loads graphs: what a graph has twice is computed twice on purpose."""


class GraphSession:
    """An ONNX model ready to run on one thread; ``extra`` values of the graph become outputs too.

    Args:
        set_options: sets options of the session, where a device has others for the program.

    Raises:
        ParityError: the model cannot be loaded, or has no such values.
    """

    def __init__(
        self, model: onnx.ModelProto | bytes, extra: Sequence[str] = (), *, set_options: SetOptions | None = None
    ) -> None:
        import onnxruntime as ort

        try:
            self._session: Any = self._load(ort, model, extra, set_options)
        except Exception as error:  # the runtime raises pybind classes without a common base of its own
            raise ParityError(f"the graph cannot be loaded ({error}); it is wrong, do not use it") from error
        self._rows = [i.name for i in self._session.get_inputs() if ROWS in i.name]
        self.inputs = [i.name for i in self._session.get_inputs() if i.name not in self._rows]
        self.batched = [i.name for i in self._session.get_inputs() if i.shape[:1] == [BATCH] and i.name in self.inputs]
        self.outputs = [o.name for o in self._session.get_outputs()]

    @staticmethod
    def _load(ort: Any, model: onnx.ModelProto | bytes, extra: Sequence[str], set_options: SetOptions | None) -> Any:
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
        if set_options:
            set_options(options)
        return ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"], **LOADING)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs by name; of ``feeds`` only what the graph takes is read, rows of tables as a device reads them.

        Raises:
            ParityError: the graph takes something else, or cannot be executed.
        """
        missing = [name for name in self.inputs if name not in feeds]
        if missing:
            raise ParityError(f"the graph takes inputs {missing[:3]} that the step has not; it is wrong, do not use it")
        try:
            given = {name: feeds[name] for name in self.inputs} | {
                name: rows_of(name, feeds, feeds) for name in self._rows
            }
            values = self._session.run(self.outputs, given)
        except Exception as error:  # as above
            raise ParityError(f"the graph cannot be executed ({error}); it is wrong, do not use it") from error
        named = zip(self.outputs, values, strict=True)
        return {name: _shaped(name, value, given) for name, value in named}


def _shaped(name: str, value: np.ndarray, given: Mapping[str, np.ndarray]) -> np.ndarray:
    """``value`` in the shape of what it is the new value of: a graph may give it in blocks."""
    before = given.get(name.removeprefix(NEXT)) if name.startswith(NEXT) else None
    return value if before is None else value.reshape(before.shape)

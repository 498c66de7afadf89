"""``python -m export.formats.ort_training.child``: the exporter's hands in the runtime's own environment.

Holds NumPy and the onnxruntime-training wheel; neither torch nor onnx. It reads requests from stdin and answers on
stdout, each a JSON message and a block of tensors, both with their length in front. It ends when stdin is closed.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from edge.contracts.errors import ApportionError
from edge.contracts.manifest import Program
from edge.contracts.tensor_file import decode_tensors, encode_tensors
from edge.contracts.tensors import TensorSpec, concrete_shape, is_carried

MODEL = "model"


class Differentiate(msgspec.Struct, frozen=True, tag=True):
    """The model in tensor ``model`` with gradients of ``objective`` as further outputs ``<parameter>_grad``."""

    objective: str
    parameters: tuple[str, ...]


class Checkpoint(msgspec.Struct, frozen=True, tag=True):
    """A checkpoint of parameters by name and shape; it holds values when they are among the tensors, and none else."""

    trained: dict[str, tuple[int, ...]]
    fixed: dict[str, tuple[int, ...]]


class Open(msgspec.Struct, frozen=True, tag=True):
    """A fresh session of the artifact's files in ``folder``."""

    folder: str
    programs: tuple[Program, ...]
    tensors: tuple[TensorSpec, ...]


class Run(msgspec.Struct, frozen=True, tag=True):
    """One run of ``program`` from the state among the tensors; gives its outputs and, after training, the moved state.

    ``optimizer_model`` steps with the artifact's optimizer model instead of the agent's own rule.
    """

    program: str
    optimizer_model: bool = False


class Answer(msgspec.Struct, frozen=True):
    """``problem`` says what went wrong; the tensors beside it are the result."""

    problem: str = ""


Request = Differentiate | Checkpoint | Open | Run


def write_frame(stream: IO[bytes], message: Any, tensors: Mapping[str, np.ndarray]) -> None:
    """One message and its tensors."""
    for part in (msgspec.json.encode(message), encode_tensors(tensors)):
        stream.write(struct.pack("<Q", len(part)))
        stream.write(part)
    stream.flush()


def read_frame(stream: IO[bytes], kind: Any) -> tuple[Any, dict[str, np.ndarray]] | None:
    """The next message, of type ``kind``, and its tensors; None when the stream has ended."""
    parts = []
    for _ in range(2):
        head = stream.read(8)
        if len(head) < 8:
            return None
        (size,) = struct.unpack("<Q", head)
        part = stream.read(size)
        if len(part) < size:
            return None
        parts.append(part)
    return msgspec.json.decode(parts[0], type=kind), decode_tensors(parts[1], where="exporter's child")


def as_tensor(data: bytes) -> np.ndarray:
    """Bytes as they travel in a frame."""
    return np.frombuffer(data, np.uint8)


class Worker:
    """Answers requests; keeps the session that was opened last."""

    def __init__(self) -> None:
        from edge.runtimes.onnxruntime_training import session as onnxruntime_training

        self._runtime = onnxruntime_training
        self._session: Any = None
        self._specs: dict[str, TensorSpec] = {}

    def answer(self, request: Request, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The tensors that answer ``request``."""
        if isinstance(request, Differentiate):
            return {MODEL: as_tensor(_differentiated(tensors[MODEL].tobytes(), request))}
        if isinstance(request, Checkpoint):
            return {MODEL: as_tensor(_checkpoint(request, tensors))}
        if isinstance(request, Open):
            files = {path.name: path for path in Path(request.folder).iterdir()}
            session = self._runtime.OrtTrainingSession(request.programs, request.tensors, files, threads=1)
            self._session, self._specs = session, {t.name: t for t in request.tensors}
            return {}
        return self._run(request, tensors)

    def _run(self, request: Run, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        state = {n: v for n, v in tensors.items() if self._is_state(n)}
        absent = {n: np.zeros(concrete_shape(s), s.dtype) for n, s in self._specs.items() if self._is_state(n)}
        self._session.load_state(absent | state)  # a program of a part is given that part alone
        outputs = {n: np.array(v) for n, v in self._session.outputs(request.program, tensors).items()}
        if request.optimizer_model:
            outputs |= self._session.stepped_by_model(float(tensors["lr"]))
        elif any(name.startswith(self._runtime.GRADIENT) for name in outputs):
            self._session.run(request.program, tensors)
            moved = [n for n in state if self._specs[n].role in ("parameter", "slot", "accumulator")]
            outputs |= {f"next:{n}": np.array(self._session.read(n)) for n in moved}
        return outputs

    def _is_state(self, name: str) -> bool:
        return name in self._specs and is_carried(self._specs[name])


def _differentiated(model: bytes, request: Differentiate) -> bytes:
    from onnxruntime.capi import _pybind_state as native

    options = native.SessionOptions()
    parameters = set(request.parameters)
    optimized = native.get_optimized_model(model, parameters, options)
    builder = native.GradientGraphBuilder(optimized, {request.objective}, parameters, request.objective, options)
    builder.build()
    return bytes(builder.get_model())


def _checkpoint(request: Checkpoint, values: Mapping[str, np.ndarray]) -> bytes:
    from onnxruntime.capi import _pybind_state as native

    groups = [
        [_tensor_proto(n, shape, values.get(n)) for n, shape in group.items()]
        for group in (request.trained, request.fixed)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        native.save_checkpoint(*groups, str(path), not values)
        return path.read_bytes()


def _tensor_proto(name: str, shape: tuple[int, ...], value: np.ndarray | None) -> bytes:
    """A float32 ``onnx.TensorProto``, zero by default: fields dims (1), data_type (2), name (8) and raw_data (9)."""
    encoded = name.encode()
    data = bytes(4 * int(np.prod(shape, dtype=np.int64))) if value is None else value.tobytes()
    dims = b"".join(b"\x08" + _varint(size) for size in shape)
    return dims + b"\x10\x01" + b"\x42" + _varint(len(encoded)) + encoded + b"\x4a" + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def main() -> int:
    """Serve until stdin is closed."""
    # Native code may print to stdout: keep the pipe to ourselves and give everybody else stderr.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        worker = Worker()
    except ImportError as error:
        write_frame(out, Answer(f"{error}"), {})
        return 3
    write_frame(out, Answer(), {})
    while (frame := read_frame(sys.stdin.buffer, Request)) is not None:
        try:
            answer, tensors = Answer(), worker.answer(*frame)
        except ApportionError as error:
            answer, tensors = Answer(str(error)), {}
        except Exception as error:  # the runtime raises pybind classes without a common base of its own
            answer, tensors = Answer(f"{type(error).__name__}: {error}"), {}
        write_frame(out, answer, tensors)
    return 0


if __name__ == "__main__":
    sys.exit(main())

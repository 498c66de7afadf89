"""An ONNX graph is one file: what it says lies in other files of the device is refused before a runtime opens it.

ONNX Runtime Training 1.19.2 takes whatever path a graph names, also ``../`` and ``/etc``, and what is read so is a
weight, which travels with an update. A device has no library of ONNX's messages, so the few fields that lead to values
are followed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edge.contracts.errors import DeviceRefused

_KEY = b"location"
"""Without this key in it, no value of a graph is in another file."""
_TENSOR_ELSEWHERE = (13, 14)  # TensorProto.external_data, .data_location
_PARTS = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "tensor": {},
}
"""Message -> field number -> message, of those on the way to a TensorProto. Source: onnx.proto3, IR version 10."""


def check_is_whole(path: Path, file: str, *, beside: str = "") -> None:
    """Check that the graph at ``path`` takes no value from another file.

    Args:
        beside: the one file, by its name in the graph's folder, that values may be in.

    Raises:
        DeviceRefused: it does, or it is no graph; says so of ``file``.
    """
    data = path.read_bytes()
    if _KEY not in data:
        return
    waiting = [("model", 0, len(data))]
    while waiting:
        kind, start, end = waiting.pop()
        for field, first, last in _fields(data, start, end, file):
            is_elsewhere = kind == "tensor" and field in _TENSOR_ELSEWHERE
            if is_elsewhere and not (beside and _is_in(data, first, last, beside, file)):
                raise DeviceRefused(
                    f"cannot load {file}: it takes values from another file, and a graph must hold its own; export it "
                    "again without external data"
                )
            if last > first and field in _PARTS[kind]:
                waiting.append((_PARTS[kind][field], first, last))


def _is_in(data: bytes, start: int, end: int, beside: str, file: str) -> bool:
    """Whether an entry of a tensor's external data, or where it lies at all, leads to no other file than ``beside``."""
    if not end:  # TensorProto.data_location, a number
        return True
    entry = {field: data[first:last] for field, first, last in _fields(data, start, end, file)}
    return entry.get(1) != b"location" or entry.get(2) == beside.encode()


def _fields(data: bytes, start: int, end: int, file: str) -> Iterator[tuple[int, int, int]]:
    """Number, first byte and end of every field of a message; both are 0 where the field is a number.

    Raises:
        DeviceRefused: that is no message.
    """
    at = start
    while at < end:
        tag, at = _number(data, at, file)
        wire, first, last = tag & 7, 0, 0
        if wire == 0:
            _, at = _number(data, at, file)
        elif wire == 2:
            size, first = _number(data, at, file)
            at = last = first + size
        else:
            at += {1: 8, 5: 4}.get(wire, end)  # groups are in no graph
        if at > end:
            raise DeviceRefused(f"cannot load {file}: it ends within a field, or is no ONNX graph; fetch it again")
        yield tag >> 3, first, last


def _number(data: bytes, at: int, file: str) -> tuple[int, int]:
    """A number of protobuf's, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise DeviceRefused(f"cannot load {file}: it ends within a number, or is no ONNX graph; fetch it again")

"""Tensors as safetensors bytes, and the check of what arrived against what was ordered.

The header is read and bounded here before any array exists, so a hostile file costs its own size and no more.
Sparse and difference encodings are layered on top by the methods that need them.
"""

from __future__ import annotations

import functools
import json
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.contracts.errors import ArtifactCorrupt, UpdateRejected
from edge.contracts.tensors import DTYPE_BYTES, TensorSpec

if TYPE_CHECKING:
    import numpy as np

MAX_HEADER_BYTES = 4 * 1024 * 1024
"""A header of 4 MiB names about 40,000 tensors; ResNet-34 with its optimizer has 330."""

MAX_DIMS = 32
"""NumPy's own limit up to 1.26, far above any model's; checked before anything is multiplied."""

MAX_MAGNITUDE = 1e15
"""No trained value comes near; above it a product of two factors leaves float32, in the middle of an aggregation."""

PIECE = 65_536
"""Entries that are looked at together: 256 KiB of float32."""

_SAFETENSORS_DTYPES = {
    "F32": "float32",
    "F16": "float16",
    "I64": "int64",
    "I32": "int32",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
SAFETENSORS_NAMES = {dtype: name for name, dtype in _SAFETENSORS_DTYPES.items()}
"""Element types as the format calls them."""


def encode_tensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Safetensors bytes of ``tensors``, names sorted, no metadata: equal tensors give equal bytes.

    The data of the widest dtypes comes first, as the format's own writer lays it out, so that every tensor is aligned.
    """
    import numpy as np

    # asarray: ascontiguousarray would give a scalar one dimension.
    arrays = {name: np.asarray(tensors[name], order="C") for name in sorted(tensors)}
    arrays = {name: value.astype(value.dtype.newbyteorder("<"), copy=False) for name, value in arrays.items()}
    header, order = _laid_out(tuple((name, value.dtype.str, value.shape) for name, value in arrays.items()))
    return b"".join([header, *(arrays[name].reshape(-1).view(np.uint8).data for name in order)])


@functools.lru_cache(maxsize=32)
def _laid_out(layout: tuple[tuple[str, str, tuple[int, ...]], ...]) -> tuple[bytes, tuple[str, ...]]:
    """What comes before the data of tensors (name, dtype, shape), and their names in the order of their data."""
    import numpy as np
    from safetensors.numpy import save

    # The format's own writer decides. Its files have as many bytes whatever the values, so it is asked once a layout.
    data = save({name: np.zeros(shape, dtype) for name, dtype, shape in layout})
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    # The writer's header follows the data; ours is in the names' order, and exactly as long.
    ordered = json.dumps(dict(sorted(header.items())), separators=(",", ":"), ensure_ascii=False).encode()
    placed = sorted(header, key=lambda name: tuple(header[name]["data_offsets"]))
    return bytes(data[:8]) + ordered.ljust(length), tuple(placed)


def decode_tensors(data: bytes | memoryview, *, where: str) -> dict[str, np.ndarray]:
    """Arrays by name, read-only views into ``data``.

    Args:
        where: what these bytes are, for the message (``device pi-07, round 12``).

    Raises:
        ArtifactCorrupt: truncated, oversized header, overlapping or out-of-range tensors, unknown dtype.
    """
    import numpy as np

    header, start = read_header(data, where=where)
    body = memoryview(data)[start:]
    arrays: dict[str, np.ndarray] = {}
    for name, (dtype, shape, begin, end) in header.items():
        arrays[name] = np.frombuffer(body[begin:end], dtype=dtype).reshape(shape)
    return arrays


def read_header(
    data: bytes | memoryview, *, where: str
) -> tuple[dict[str, tuple[str, tuple[int, ...], int, int]], int]:
    """Name -> (dtype, shape, begin, end) of a safetensors file, and where its data starts; everything checked.

    Raises:
        ArtifactCorrupt: as :func:`decode_tensors`.
    """
    total = len(data)
    if total < 8:
        raise ArtifactCorrupt(f"{where}: tensor file of {total} bytes is truncated, at least 8 expected; send it again")
    (length,) = struct.unpack("<Q", bytes(data[:8]))
    if length > MAX_HEADER_BYTES or 8 + length > total:
        raise ArtifactCorrupt(
            f"{where}: tensor header says {length} bytes, file has {total} and the limit is {MAX_HEADER_BYTES}; "
            "send it again"
        )
    try:
        raw: Any = json.loads(bytes(data[8 : 8 + length]))
    except (ValueError, RecursionError) as error:
        raise ArtifactCorrupt(f"{where}: tensor header is not JSON ({error}); send it again") from error
    if not isinstance(raw, dict):
        raise ArtifactCorrupt(f"{where}: tensor header is {type(raw).__name__}, an object expected; send it again")
    raw.pop("__metadata__", None)
    header: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
    for name, entry in raw.items():
        header[name] = _header_entry(name, entry, total - 8 - length, where)
    previous_end = 0
    for name, (_, _, begin, end) in sorted(header.items(), key=lambda item: item[1][2:]):
        if begin != previous_end:
            raise ArtifactCorrupt(f"{where}: tensor '{name}' starts at {begin}, {previous_end} expected; send it again")
        previous_end = end
    if previous_end != total - 8 - length:
        raise ArtifactCorrupt(
            f"{where}: tensors end at byte {previous_end} of {total - 8 - length}; the file is truncated or padded"
        )
    return header, 8 + int(length)


def _header_entry(name: str, entry: Any, body_bytes: int, where: str) -> tuple[str, tuple[int, ...], int, int]:
    try:
        dtype = _SAFETENSORS_DTYPES[entry["dtype"]]
        shape = tuple(entry["shape"])
        begin, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactCorrupt(f"{where}: header of tensor '{name}' is not readable ({error!r})") from error
    if len(shape) > MAX_DIMS:
        raise ArtifactCorrupt(f"{where}: tensor '{name[:80]}' has {len(shape)} dims, the limit is {MAX_DIMS}")
    if not all(type(v) is int and 0 <= v <= 2**48 for v in (*shape, begin, end)):
        raise ArtifactCorrupt(f"{where}: tensor '{name}' has shape {shape} at [{begin}, {end}); sizes must be counts")
    count, reach = 1, 1
    for size in shape:
        count *= size
        reach *= max(1, size)
    if reach > 2**48:
        # NumPy refuses it even where a dimension of 0 makes the tensor empty.
        raise ArtifactCorrupt(f"{where}: tensor '{name[:80]}' has shape {shape}, more than an array can index")
    if end > body_bytes or end - begin != count * DTYPE_BYTES[dtype]:
        raise ArtifactCorrupt(
            f"{where}: tensor '{name}' {dtype}{list(shape)} needs {count * DTYPE_BYTES[dtype]} bytes, "
            f"[{begin}, {end}) of {body_bytes} given"
        )
    return dtype, shape, begin, end


def read_tensor_file(path: Path, *, where: str) -> dict[str, np.ndarray]:
    """Arrays of a safetensors file, memory-mapped and read-only.

    Raises:
        ArtifactCorrupt: as :func:`decode_tensors`.
    """
    import mmap

    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise ArtifactCorrupt(f"{where}: {path.name} is empty; send it again")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise ArtifactCorrupt(f"{where}: {path.name} is not there; send it again") from error
    return decode_tensors(memoryview(mapped), where=where)


def check_tensors(tensors: Mapping[str, np.ndarray], specs: Iterable[TensorSpec], *, where: str) -> None:
    """Check that ``tensors`` are exactly ``specs``: names, shapes, dtypes, and only finite values.

    Raises:
        UpdateRejected: naming the first tensor that differs, both values, and the next step.
    """
    _magnitudes(tensors, specs, where=where)


def _magnitudes(tensors: Mapping[str, np.ndarray], specs: Iterable[TensorSpec], *, where: str) -> dict[str, float]:
    """As :func:`check_tensors`; the largest absolute value of every tensor of floating-point numbers."""
    import numpy as np

    magnitudes: dict[str, float] = {}
    expected = {spec.name: spec for spec in specs}
    missing = sorted(expected.keys() - tensors.keys())
    extra = sorted(tensors.keys() - expected.keys())
    if missing or extra:
        raise UpdateRejected(
            f"{where}: {len(missing)} tensors missing {missing[:3]}, {len(extra)} not ordered {extra[:3]}; "
            "the device trained another artifact: re-plan it"
        )
    for name, spec in expected.items():
        array = tensors[name]
        if tuple(array.shape) != spec.shape:
            raise UpdateRejected(
                f"{where}: update for '{name}' has shape {tuple(array.shape)}, plan says {spec.shape}; "
                "re-plan the device"
            )
        if array.dtype.name != spec.dtype:
            raise UpdateRejected(
                f"{where}: update for '{name}' is {array.dtype.name}, plan says {spec.dtype}; re-plan the device"
            )
        if array.dtype.kind != "f":
            continue
        magnitudes[name] = largest_magnitude(array)
        if not math.isfinite(magnitudes[name]):
            bad = int(array.size - np.isfinite(array).sum())
            raise UpdateRejected(
                f"{where}: '{name}' holds {bad} values that are not finite; lower the learning rate or drop the device"
            )
    return magnitudes


def largest_magnitude(array: np.ndarray) -> float:
    """The largest absolute value, 0 of no values, NaN where there is one; without an array of its size."""
    import numpy as np

    # In row order one pass over memory: both ask for a piece that is in a core's cache.
    flat = array.reshape(-1) if array.flags.c_contiguous else array
    pieces = range(0, flat.size, PIECE) if flat.ndim == 1 else ()
    found = 0.0
    for part in [flat[at : at + PIECE] for at in pieces] or [flat]:
        largest, lowest = float(np.max(part, initial=0.0)), float(np.min(part, initial=0.0))
        if math.isnan(largest):
            return largest
        found = max(found, largest, -lowest)
    return found


def check_trained(tensors: Mapping[str, np.ndarray], specs: Iterable[TensorSpec], *, where: str) -> None:
    """Check that ``tensors`` are exactly ``specs``, finite and of a trained model's magnitude.

    Raises:
        UpdateRejected: they are not.
    """
    for name, largest in _magnitudes(tensors, specs, where=where).items():
        if largest > MAX_MAGNITUDE:
            raise UpdateRejected(
                f"{where}: '{name}' holds {largest:.3g}, at most {MAX_MAGNITUDE:g} is taken for trained; "
                "lower the learning rate or drop the device"
            )

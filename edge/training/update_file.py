"""An update as a file: safetensors, written tensor by tensor so that it never exists twice in memory."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from edge.contracts.errors import DeviceRefused
from edge.contracts.plan import Encoding
from edge.contracts.tensor_file import SAFETENSORS_NAMES

_CHUNK_BYTES = 1 << 20


def write_update(path: Path, tensors: Mapping[str, np.ndarray], encoding: Encoding) -> tuple[str, int, int]:
    """(SHA-256 and size of the safetensors bytes, size of the encoded file) of ``tensors`` written to ``path``.

    The widest dtypes come first and names are sorted within one, so that every tensor is aligned and equal tensors
    give equal bytes.
    """
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        if encoding == "raw":
            for chunk in _chunks(tensors):
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
        elif encoding == "zstd":
            import zstandard  # only for orders that compress

            with zstandard.ZstdCompressor(level=3).stream_writer(file, closefd=False) as packed:
                for chunk in _chunks(tensors):
                    digest.update(chunk)
                    size += len(chunk)
                    packed.write(chunk)
        else:
            raise DeviceRefused(f"update encoding '{encoding}' is unknown, known are raw and zstd; order one of them")
        return digest.hexdigest(), size, file.tell()


def _chunks(tensors: Mapping[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    header: dict[str, object] = {}
    offset = 0
    for name in names:
        array = tensors[name]
        header[name] = {
            "dtype": SAFETENSORS_NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for name in names:
        array = tensors[name]  # once: some are made when they are asked for
        if array.nbytes == 0:
            continue
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]

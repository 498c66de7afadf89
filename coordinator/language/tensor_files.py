"""Files of many tensors in safetensors form, read mapped and written one tensor after the other.

Apart from :mod:`edge.contracts.tensor_file` because files of public models hold bfloat16, and because a model does not
fit into the memory of who writes it.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edge.contracts.errors import ConfigError

_HEADER_LIMIT = 100_000_000
"""Bytes; the format's own limit."""

_READ = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_WRITTEN = {"float32": "F32", "float16": "F16", "int8": "I8"}


class TensorFile:
    """A safetensors file of floating-point tensors, mapped.

    Raises:
        ConfigError: it is not there, damaged, or holds another dtype.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            (length,) = struct.unpack("<Q", self._data[:8])
            if length > _HEADER_LIMIT:
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(bytes(self._data[8 : 8 + length]))
            header.pop("__metadata__", None)
            self._entries = {str(name): _entry(value, len(self._data) - 8 - length) for name, value in header.items()}
            self._start = 8 + length
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
            raise ConfigError([f"{path}: is no readable safetensors file ({error}); copy it again"]) from error

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name][1]

    def read(self, name: str) -> np.ndarray:
        """Tensor ``name`` as float32; a view of the file where it is held so.

        Raises:
            ConfigError: it is of another dtype than floating point.
        """
        dtype, shape, begin, end = self._entries[name]
        if dtype not in _READ:
            raise ConfigError(
                [f"{self.path}: '{name}' is {dtype}, one of {', '.join(_READ)} expected; give a model not quantised"]
            )
        raw = np.frombuffer(self._data[self._start + begin : self._start + end], _READ[dtype]).reshape(shape)
        if dtype == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.astype(np.float32, copy=False)


def _entry(value: Any, size: int) -> tuple[str, tuple[int, ...], int, int]:
    dtype, shape, (begin, end) = str(value["dtype"]), tuple(int(n) for n in value["shape"]), value["data_offsets"]
    if not 0 <= begin <= end <= size or min(shape, default=0) < 0:
        raise ValueError(f"a tensor at [{begin}, {end}) of {size} bytes")
    if dtype in _READ and end - begin != int(np.prod(shape, dtype=np.int64)) * np.dtype(_READ[dtype]).itemsize:
        raise ValueError(f"{end - begin} bytes for {dtype} {list(shape)}")
    return dtype, shape, begin, end


def write_tensors(
    path: Path, specs: Mapping[str, tuple[tuple[int, ...], str]], values: Iterable[tuple[str, np.ndarray]]
) -> None:
    """Write the tensors of ``specs`` (name -> shape and dtype) at ``path``, in their order, one in memory at a time.

    Args:
        values: the same names in the same order.

    Raises:
        ValueError: another name, shape or dtype than the next of ``specs``.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (shape, dtype) in specs.items():
        begin, end = end, end + int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        header[name] = {"dtype": _WRITTEN[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        expected = iter(specs.items())
        for name, value in values:
            wanted, (shape, dtype) = next(expected, ("nothing more", ((), "")))
            if name != wanted or value.shape != shape or value.dtype != dtype:
                raise ValueError(f"{path}: '{name}' {value.shape} {value.dtype}, '{wanted}' {shape} {dtype} expected")
            file.write(np.ascontiguousarray(value).data)
        if (left := next(expected, None)) is not None:
            raise ValueError(f"{path}: no value of '{left[0]}'")

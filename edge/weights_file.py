"""The weights of an order as a mapping that gives each page of its file back once it is copied.

A trainer's second order finds its buffers and the runtime's arena in memory already; a mapped weights file on top of
them would be the peak of the whole assignment (measured: 17 of 191 MB for a 4.3-million-parameter perceptron).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from edge.contracts.errors import ArtifactCorrupt
from edge.contracts.tensor_file import read_header

_CHUNK_BYTES = 1 << 20


class WeightsFile(Mapping[str, np.ndarray]):
    """Read-only arrays of a safetensors file by name; :meth:`copy_into` is the thrifty way to read one.

    Raises:
        ArtifactCorrupt: not such a file.
    """

    def __init__(self, path: Path, *, where: str) -> None:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise ArtifactCorrupt(f"{where}: {path.name} is empty; send it again")
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._header, self._start = read_header(memoryview(self._mapped), where=where)

    def __getitem__(self, name: str) -> np.ndarray:
        dtype, shape, begin, end = self._header[name]
        body = memoryview(self._mapped)[self._start + begin : self._start + end]
        return np.frombuffer(body, dtype=dtype).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._header)

    def __len__(self) -> int:
        return len(self._header)

    def copy_into(self, name: str, target: np.ndarray) -> None:
        """Fill ``target`` [any shape, contiguous, the tensor's dtype and size] with tensor ``name``."""
        source = self[name].reshape(-1).view(np.uint8)
        out = target.reshape(-1).view(np.uint8)
        begin = self._start + self._header[name][2]
        for at in range(0, len(source), _CHUNK_BYTES):
            out[at : at + _CHUNK_BYTES] = source[at : at + _CHUNK_BYTES]
            first = (begin + at) // mmap.PAGESIZE * mmap.PAGESIZE
            last = min(begin + at + _CHUNK_BYTES, len(self._mapped))
            self._mapped.madvise(mmap.MADV_DONTNEED, first, last - first)

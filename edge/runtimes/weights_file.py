"""The weights of an order as a mapping that gives each page of its files back once it is copied.

A trainer's second order finds its buffers and the runtime's arena in memory already; a mapped weights file on top of
them would be the peak of the whole assignment (measured: 17 of 191 MB for a 4.3-million-parameter perceptron).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from edge.contracts.errors import ArtifactCorrupt
from edge.contracts.packing import BITS, KEPT, MASK, PLACES, SHAPE, expand, unpack_mask
from edge.contracts.tensor_file import read_header

_CHUNK_BYTES = 1 << 20


class WeightsFile(Mapping[str, np.ndarray]):
    """Arrays by name of one or two safetensors files; :meth:`copy_into` is the thrifty way to read one.

    Masked tensors travel packed (:mod:`edge.contracts.packing`) and are whole here.

    Args:
        constants: a second file, of what changes rarely.
        own: names that are taken from a file of the device's own, where it has them in the same shape and type, and
            that file.

    Raises:
        ArtifactCorrupt: not such a file.
    """

    def __init__(
        self,
        path: Path,
        *,
        where: str,
        constants: Path | None = None,
        own: tuple[Collection[str], Path] | None = None,
    ) -> None:
        files = [_MappedFile(p, where=where) for p in (path, constants) if p is not None]
        self._where = where
        self._files = {name: file for file in files for name in file.header}
        if own is not None and own[1].is_file():
            names, mine = own[0], _MappedFile(own[1], where=f"{where}, the device's own layers")
            for name in names:
                if name in self._files and mine.header.get(name, ())[:2] == self._files[name].header[name][:2]:
                    self._files[name] = mine
        self._masks: dict[str, np.ndarray] = {}
        packed = [name.removesuffix(SHAPE) for name in self._files if name.endswith(SHAPE)]
        hidden = {base + suffix for base in packed for suffix in (BITS, PLACES, SHAPE)}
        self._names = dict.fromkeys(n.removesuffix(KEPT) for n in self._files if n not in hidden)
        self._names |= dict.fromkeys(base + MASK for base in packed)

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._files:
            return self._files[name].array(name)
        if name not in self._names:
            raise KeyError(name)
        if name.endswith(MASK):
            return self._mask(name.removesuffix(MASK))
        shape, dtype = self.described(name)
        return expand(self[name + KEPT], self._mask(name), np.empty(shape, dtype), where=self._where)

    def __contains__(self, name: object) -> bool:
        return name in self._names or name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def described(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of tensor ``name``, which is not read."""
        if name in self._files:
            dtype, shape, _, _ = self._files[name].header[name]
            return shape, np.dtype(dtype)
        if name.endswith(MASK):
            return self._mask(name.removesuffix(MASK)).shape, np.dtype(bool)
        return self._mask(name).shape, np.dtype(self._files[name + KEPT].header[name + KEPT][0])

    def copy_into(self, name: str, target: np.ndarray) -> None:
        """Fill ``target`` [the tensor's shape and dtype, contiguous] with tensor ``name``."""
        if name in self._files:
            self._files[name].copy_into(name, target)
        elif name.endswith(MASK):
            np.copyto(target, self[name])
        else:
            expand(self[name + KEPT], self._mask(name), target, where=self._where)

    def read_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Rows ``rows`` [N], from 0 on, of tensor ``name``, read from its file: no page of the mapping is touched."""
        return self._files[name].read_rows(name, rows)

    def release(self) -> None:
        """Give back every page of the files that is in memory; what is read again is read from them again."""
        for file in {id(file): file for file in self._files.values()}.values():
            file.release()

    def _mask(self, name: str) -> np.ndarray:
        if name not in self._masks:
            parts = {name + s: self[name + s] for s in (BITS, PLACES, SHAPE) if name + s in self._files}
            self._masks[name] = unpack_mask(name, parts, where=self._where)
        return self._masks[name]


class _MappedFile:
    """One safetensors file, mapped.

    Attributes:
        header: name -> (dtype, shape, begin, end).
    """

    def __init__(self, path: Path, *, where: str) -> None:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise ArtifactCorrupt(f"{where}: {path.name} is empty; send it again")
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        # One symbol's row of an embedding would map the 2 MB around it where the file lies in huge pages: measured, 140
        # of 168 MB of a table for 128 rows.
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages
                self._mapped.madvise(mmap.MADV_NOHUGEPAGE)
        self.header, self._start = read_header(memoryview(self._mapped), where=where)

    def array(self, name: str) -> np.ndarray:
        """Tensor ``name``, read-only, a view of the file."""
        dtype, shape, begin, end = self.header[name]
        body = memoryview(self._mapped)[self._start + begin : self._start + end]
        return np.frombuffer(body, dtype=dtype).reshape(shape)

    def read_rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        """As :meth:`WeightsFile.read_rows`."""
        dtype, shape, begin, _ = self.header[name]
        found = np.empty((len(rows), *shape[1:]), dtype)
        row_bytes = found[:1].nbytes
        for row, target in zip(rows.tolist(), found.reshape(len(rows), -1).view(np.uint8), strict=True):
            os.preadv(self._descriptor, [target.data], self._start + begin + row * row_bytes)
        return found

    def release(self) -> None:
        """Give back every page that is in memory."""
        self._mapped.madvise(mmap.MADV_DONTNEED)

    def copy_into(self, name: str, target: np.ndarray) -> None:
        """Fill ``target`` chunk by chunk and give back every page that was read."""
        source = self.array(name).reshape(-1).view(np.uint8)
        out = target.reshape(-1).view(np.uint8)
        begin = self._start + self.header[name][2]
        for at in range(0, len(source), _CHUNK_BYTES):
            out[at : at + _CHUNK_BYTES] = source[at : at + _CHUNK_BYTES]
            first = (begin + at) // mmap.PAGESIZE * mmap.PAGESIZE
            last = min(begin + at + _CHUNK_BYTES, len(self._mapped))
            self._mapped.madvise(mmap.MADV_DONTNEED, first, last - first)

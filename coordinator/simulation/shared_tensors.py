"""Tensors in memory that the simulator shares with its worker processes: written once, read where they lie.

A slot is a piece of memory with an address that a child process can map: on Linux an anonymous file, which goes with
its processes however they end, elsewhere a file in a temporary folder. Slots are used again, so that their pages are
there already. Messages carry the address and where each tensor is in it, never the values.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import tempfile
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

_ALIGNED = 64
"""Bytes; tensors begin at multiples of it, as memory that NumPy and torch allocate does."""


class PlacedTensor(msgspec.Struct, frozen=True, array_like=True):
    """Where a tensor is in a slot, from byte ``at`` on."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    at: int


class Placed(msgspec.Struct, frozen=True):
    """Tensors in a slot.

    Attributes:
        address: that a process of this machine maps.
        version: of what lies there; another one each time that something is put there. 0: not counted.
        size: bytes of the slot that are used.
    """

    address: str
    size: int = 0
    tensors: tuple[PlacedTensor, ...] = ()
    version: int = 0


class Slot:
    """One piece of shared memory; it grows when more is put into it."""

    def __init__(self, folder: Path | None) -> None:
        if folder is None:
            self._fd = os.memfd_create("apportion-simulate")
            self.address = f"/proc/{os.getpid()}/fd/{self._fd}"
        else:
            self._fd, self.address = tempfile.mkstemp(dir=folder)
        self._mapping: mmap.mmap | None = None

    def bytes_(self, size: int) -> np.ndarray:
        """uint8 [size]: the first bytes of the slot, which is made as large where it is not."""
        self._mapping = mapped(self._fd, self._mapping, size)
        return np.frombuffer(self._mapping, np.uint8, size)

    def close(self) -> None:
        """Let go of the memory; arrays in it stay valid."""
        os.close(self._fd)
        self._mapping = None


class SharedSlots:
    """The slots of a simulator; a context manager that lets go of all.

    A slot that was handed out is free again when no array reads it any more.
    """

    def __init__(self) -> None:
        self._free: list[Slot] = []
        self._all: list[Slot] = []
        self._folder = contextlib.ExitStack()
        self._files = None if hasattr(os, "memfd_create") else self._temporary()

    def __enter__(self) -> SharedSlots:
        return self

    def __exit__(self, *_: object) -> None:
        for slot in self._all:
            slot.close()
        self._all, self._free = [], []
        self._folder.close()

    def take(self) -> Slot:
        """A slot that nobody uses; :meth:`give_back` or the end of what :meth:`read` gave frees it."""
        with contextlib.suppress(IndexError):
            return self._free.pop()  # by several threads
        slot = Slot(self._files)
        self._all.append(slot)
        return slot

    def give_back(self, slot: Slot) -> None:
        """The slot is free."""
        self._free.append(slot)

    def read(self, slot: Slot, placed: Placed) -> dict[str, np.ndarray]:
        """Read-only views of the tensors in ``slot``, which is given back when the last of them is gone."""
        whole = slot.bytes_(placed.size)
        weakref.finalize(whole, self.give_back, slot).atexit = False
        return views(whole, placed)

    def _temporary(self) -> Path:
        return Path(self._folder.enter_context(tempfile.TemporaryDirectory(prefix="apportion-shared-")))


class MappedSlots:
    """Another process's slots, mapped when an address is first seen."""

    def __init__(self) -> None:
        self._mappings: dict[str, tuple[int, mmap.mmap]] = {}
        self._read: dict[str, tuple[Placed, dict[str, np.ndarray]]] = {}

    def read(self, placed: Placed) -> dict[str, np.ndarray]:
        """Read-only views of the tensors; they hold until the other process uses the slot again.

        The same arrays for the same version.
        """
        before, found = self._read.get(placed.address, (None, {}))
        if before != placed or not placed.version:
            found = views(self._bytes(placed.address, placed.size), placed)
            self._read[placed.address] = placed, found
        return found

    def room(self, address: str, tensors: Mapping[str, np.ndarray]) -> tuple[Placed, dict[str, np.ndarray]]:
        """Room for tensors such as ``tensors`` in the slot at ``address``: where they lie, and arrays to write to."""
        placed = laid_out(address, tensors)
        whole = self._bytes(address, placed.size)
        return placed, {entry.name: _view(whole, entry) for entry in placed.tensors}

    def _bytes(self, address: str, size: int) -> np.ndarray:
        fd, before = self._mappings.get(address, (-1, None))
        fd = os.open(address, os.O_RDWR) if fd < 0 else fd
        mapping = mapped(fd, before, size)
        self._mappings[address] = fd, mapping
        return np.frombuffer(mapping, np.uint8, size)


@dataclass
class Sent:
    """Tensors that workers read.

    Attributes:
        held: the arrays they are copies of; while these are held, no other array has the identity of one of them.
        readers: that have not answered yet.
    """

    slot: Slot
    placed: Placed
    held: Mapping[str, np.ndarray]
    readers: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def more(self, count: int) -> None:
        """``count`` more readers, or fewer."""
        with self._lock:
            self.readers += count


class SentTensors:
    """Submodels that lie in slots for workers to read; the same arrays are placed once.

    Args:
        most: that are kept while nobody reads them.
    """

    def __init__(self, slots: SharedSlots, most: int) -> None:
        self._slots, self._most = slots, most
        self._versions = itertools.count(1)
        self._kept: OrderedDict[tuple[tuple[str, int], ...], Sent] = OrderedDict()

    def place(self, tensors: Mapping[str, np.ndarray]) -> Sent:
        """``tensors`` in a slot, for one reader more."""
        key = tuple((name, id(value)) for name, value in tensors.items())
        if key not in self._kept:
            self._drop_to(self._most - 1)
            slot = self._slots.take()
            placed = msgspec.structs.replace(laid_out(slot.address, tensors), version=next(self._versions))
            put(slot.bytes_(placed.size), placed, tensors)
            self._kept[key] = Sent(slot, placed, tensors)
        self._kept.move_to_end(key)
        self._kept[key].more(1)
        return self._kept[key]

    def drop(self) -> None:
        """Give back every slot that nobody reads."""
        self._drop_to(0)

    def _drop_to(self, count: int) -> None:
        for key in [key for key, sent in self._kept.items() if sent.readers == 0]:
            if len(self._kept) <= count:
                return
            self._slots.give_back(self._kept.pop(key).slot)


def mapped(fd: int, mapping: mmap.mmap | None, size: int) -> mmap.mmap:
    """``mapping`` of ``fd`` when it has ``size`` bytes, else a new one, the file made as large."""
    if mapping is not None and len(mapping) >= size:
        return mapping
    if os.fstat(fd).st_size < size:
        os.posix_fallocate(fd, 0, size) if hasattr(os, "posix_fallocate") else os.truncate(fd, size)
    return mmap.mmap(fd, max(size, os.fstat(fd).st_size, 1))


def laid_out(address: str, tensors: Mapping[str, np.ndarray]) -> Placed:
    """Where ``tensors`` go in a slot."""
    entries, end = [], 0
    for name, value in tensors.items():
        entries.append(PlacedTensor(name, value.dtype.name, value.shape, end))
        end += -(-value.nbytes // _ALIGNED) * _ALIGNED
    return Placed(address, max(end, _ALIGNED), tuple(entries))


def put(whole: np.ndarray, placed: Placed, tensors: Mapping[str, np.ndarray]) -> None:
    """Copy ``tensors`` to their places in ``whole`` [uint8]."""
    for entry in placed.tensors:
        np.copyto(_view(whole, entry), tensors[entry.name])


def views(whole: np.ndarray, placed: Placed) -> dict[str, np.ndarray]:
    """The tensors in ``whole`` [uint8], read-only."""
    found = {entry.name: _view(whole, entry) for entry in placed.tensors}
    for value in found.values():
        value.flags.writeable = False
    return found


def _view(whole: np.ndarray, entry: PlacedTensor) -> np.ndarray:
    dtype = np.dtype(entry.dtype)
    size = dtype.itemsize * int(np.prod(entry.shape, dtype=np.int64))
    return whole[entry.at : entry.at + size].view(dtype).reshape(entry.shape)

"""Features of examples on a device's disk: one file of fixed-size records, each there whole or not there.

::

    record   place of the example (u64, little-endian) | seal (16 bytes) | features (as many bytes as all others)

The seal is BLAKE2b over the example and its features, keyed by what the features were computed with. A record whose
seal does not fit is not there: half a write, a bit that turned, another example in its place, other weights. Records
are appended, so the file is never larger than what it holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np

log = logging.getLogger("apportion.features")

_SEAL_BYTES = 16
_HEAD_BYTES = 8 + _SEAL_BYTES
_NONE = -1


class RecordFile:
    """The records of ``examples`` examples in the file at ``path``, which is made when missing.

    Args:
        key: 32 bytes that stand for what features are computed with.
        feature_bytes: of one example.
        limit_bytes: what the file may take; what does not fit is not kept.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, key: bytes, *, examples: int, feature_bytes: int, limit_bytes: int) -> None:
        self._key = key
        self._record_bytes = _HEAD_BYTES + feature_bytes
        self._most = limit_bytes // self._record_bytes
        self._slots = np.full(examples, _NONE, np.int64)
        self._free: list[int] = []
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._count = 0
        self._read_places()

    def close(self) -> None:
        """Close the file; its records stay."""
        os.close(self._file)

    def read(self, place: int, example: bytes, target: np.ndarray) -> bool:
        """Whether the features of the example at ``place`` are there; ``target`` (contiguous) holds them then.

        Args:
            example: what the features were computed from, as bytes.
        """
        slot = int(self._slots[place])
        if slot == _NONE:
            return False
        head = bytearray(_HEAD_BYTES)
        try:
            count = os.preadv(self._file, [head, _raw(target)], slot * self._record_bytes)
        except OSError as error:
            log.warning("features of example %d cannot be read, they are computed again: %s", place, error)
            return False
        is_there = count == self._record_bytes and head == self._head(place, example, target)
        if not is_there:
            self._slots[place] = _NONE
            self._free.append(slot)
        return is_there

    def write(self, place: int, example: bytes, features: np.ndarray) -> None:
        """Keep ``features`` (contiguous) of the example at ``place``, if there is room."""
        if self._slots[place] != _NONE:
            return
        is_new = not self._free
        slot = self._count if is_new else self._free[-1]
        if slot >= self._most:
            return
        parts: list[Any] = [self._head(place, example, features), _raw(features)]
        try:
            written = os.pwritev(self._file, parts, slot * self._record_bytes)
            why = "" if written == self._record_bytes else f"{written} of {self._record_bytes} bytes were written"
        except OSError as error:
            why = str(error)
        if why:
            log.warning("features of %d examples are kept, and no more: %s", self._count, why)
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._count * self._record_bytes)
            self._most = 0
            return
        self._slots[place] = slot
        if is_new:
            self._count += 1
        else:
            self._free.pop()

    def _read_places(self) -> None:
        """Find which places have a record; what is beyond the limit, half written or of no example is room."""
        self._count = min(os.fstat(self._file).st_size // self._record_bytes, self._most)
        os.ftruncate(self._file, self._count * self._record_bytes)
        for slot in range(self._count):
            place = int.from_bytes(os.pread(self._file, 8, slot * self._record_bytes), "little")
            if place < len(self._slots) and self._slots[place] == _NONE:
                self._slots[place] = slot
            else:
                self._free.append(slot)

    def _head(self, place: int, example: bytes, features: np.ndarray) -> bytes:
        seal = hashlib.blake2b(example, digest_size=_SEAL_BYTES, key=self._key)
        seal.update(_raw(features))
        return place.to_bytes(8, "little") + seal.digest()


def _raw(array: np.ndarray) -> memoryview:
    """The bytes of a contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8).data

"""Features of examples on a device's disk: one file of fixed-size records, each there whole or not there.

::

    record   place of the example (u64, little-endian) | seal | features (as many bytes as all others)

The seal is over the example and its features, and keyed by what these were computed with
(:mod:`edge.training.feature_cache.sealing`). A record whose seal does not fit is not there: half a write, a bit that
turned, another example in its place, other weights. Records are appended, so the file is never larger than what it
holds.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np

from edge.training.feature_cache.sealing import Checksum, Sealing

log = logging.getLogger("apportion.features")

_PLACE_BYTES = 8
_NONE = -1


class RecordFile:
    """The records of ``examples`` examples in the file at ``path``, which is made when missing.

    Args:
        sealing: how records are closed; given 32 bytes that stand for what features are computed with: by a checksum.
        feature_bytes: of one example.
        limit_bytes: what the file may take; what does not fit is not kept.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(
        self, path: Path, sealing: Sealing | bytes, *, examples: int, feature_bytes: int, limit_bytes: int
    ) -> None:
        self._sealing = Checksum(sealing) if isinstance(sealing, bytes) else sealing
        self._head_bytes = _PLACE_BYTES + self._sealing.size
        self._record_bytes = self._head_bytes + feature_bytes
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
        head, raw = bytearray(self._head_bytes), _raw(target)
        try:
            count = os.preadv(self._file, [head, raw], slot * self._record_bytes)
        except OSError as error:
            log.warning("features of example %d cannot be read, they are computed again: %s", place, error)
            return False
        is_there = count == self._record_bytes and head[:_PLACE_BYTES] == _bytes_of(place)
        is_there = is_there and self._sealing.open(place, example, bytes(head[_PLACE_BYTES:]), raw)
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
        seal, kept = self._sealing.closed(place, example, _raw(features))
        parts: list[Any] = [_bytes_of(place) + seal, kept]
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


def _bytes_of(place: int) -> bytes:
    return place.to_bytes(_PLACE_BYTES, "little")


def _raw(array: np.ndarray) -> memoryview:
    """The bytes of a contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8).data

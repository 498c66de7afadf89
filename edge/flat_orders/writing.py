"""The flat form's own types: 64-bit little-endian integers and doubles, texts and lists behind their length.

What the native trainer reads (its ``order.cpp``); both are of the same release, so
there is no version but the first text.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import TypeVar

T = TypeVar("T")

MAGIC = "apportion-flat-order/3"


class Unable(Exception):
    """The native trainer cannot carry an order out; the message says why, in words that follow "because"."""


KINDS = {"float32": 0, "int64": 1, "bool": 2, "int32": 3, "uint8": 4, "float64": 5, "int8": 6}
"""Element types by number."""


class Feed(IntEnum):
    """What an input of a program is fed."""

    STATE, INPUT, TARGET, LABEL_MASK, FIXED, COUNTED, DRAW, FEATURES = range(8)


class Result(IntEnum):
    """What becomes of a program's output."""

    GRADIENT, NEXT, SCALAR, UNUSED, SUM, FEATURES = range(6)


class FlatWriter:
    """Gathers fields in their order."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def integer(self, *values: int) -> None:
        """Signed, 64 bits each."""
        self._parts.append(struct.pack(f"<{len(values)}q", *values))

    def unsigned(self, value: int) -> None:
        """The lowest 64 bits."""
        self._parts.append(struct.pack("<Q", value & (1 << 64) - 1))

    def real(self, *values: float) -> None:
        """Doubles."""
        self._parts.append(struct.pack(f"<{len(values)}d", *values))

    def text(self, *values: str | bytes) -> None:
        """UTF-8, or bytes as they are."""
        for value in values:
            data = value.encode() if isinstance(value, str) else value
            self.integer(len(data))
            self._parts.append(data)

    def integers(self, values: Sequence[int]) -> None:
        """A list of integers."""
        self.integer(len(values), *values)

    def reals(self, values: Sequence[float]) -> None:
        """A list of doubles."""
        self.integer(len(values))
        self.real(*values)

    def each(self, values: Iterable[T], write: Callable[[T], None]) -> None:
        """A list, each entry written by ``write``."""
        found = list(values)
        self.integer(len(found))
        for value in found:
            write(value)

    def to_bytes(self) -> bytes:
        """Everything so far."""
        return b"".join(self._parts)

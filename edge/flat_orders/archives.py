"""Where the arrays of an ``.npz`` file lie in it, for who reads them without NumPy and without copying the file.

``numpy.savez`` stores arrays as they are, so an example is a range of the file's bytes.
"""

from __future__ import annotations

import ast
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edge.flat_orders.writing import Unable

_END, _END_BYTES, _LONGEST_COMMENT = b"PK\x05\x06", 22, 1 << 16
_ENTRY, _ENTRY_BYTES = b"PK\x01\x02", 46
_LOCAL_BYTES = 30
_ZIP64 = 0x0001
_FULL = 0xFFFFFFFF
_MOST_ENTRIES_BYTES = 1 << 20
_DTYPES = {
    "<f4": "float32",
    "<f8": "float64",
    "<i8": "int64",
    "<i4": "int32",
    "|u1": "uint8",
    "|i1": "int8",
    "|b1": "bool",
}
ITEM_BYTES = {dtype: int(code[2:]) for code, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class StoredArray:
    """An array as bytes of a file, C order.

    Attributes:
        offset: of its first byte.
        shape: examples first.
    """

    path: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Of all of it."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def stored_arrays(path: Path) -> dict[str, StoredArray]:
    """The arrays of ``path`` by name.

    Raises:
        Unable: it is no such file, one of its arrays is compressed, or of a type that the native trainer cannot read.
    """
    try:
        with path.open("rb") as file:
            return {name.removesuffix(".npy"): _array(file, path, offset) for name, offset in _entries(file, path)}
    except (OSError, ValueError, SyntaxError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise Unable(f"{path} cannot be read where it lies ({type(error).__name__}: {error})") from error


def _entries(file: IO[bytes], path: Path) -> list[tuple[str, int]]:
    """(Name, offset of its local header) of every entry, none of them compressed."""
    size = file.seek(0, 2)
    tail_at = max(0, size - _END_BYTES - _LONGEST_COMMENT)
    file.seek(tail_at)
    tail = file.read()
    end = tail.rfind(_END)
    if end < 0:
        raise Unable(f"{path} is no whole archive")
    if struct.unpack_from("<H", tail, end + _END_BYTES - 2)[0] != len(tail) - end - _END_BYTES:
        raise Unable(f"{path} is no whole archive")
    count, length, start = struct.unpack_from("<HII", tail, end + 10)
    if start == _FULL or length > _MOST_ENTRIES_BYTES:
        raise Unable(f"{path} is an archive of more than 4 GB or of very many arrays")
    file.seek(start)
    listed = file.read(length)
    found, at = [], 0
    for _ in range(count):
        if listed[at : at + 4] != _ENTRY:
            raise Unable(f"{path} has a damaged list of arrays")
        (method,) = struct.unpack_from("<H", listed, at + 10)
        packed, whole, name_length, extra_length, comment_length = struct.unpack_from("<IIHHH", listed, at + 20)
        (offset,) = struct.unpack_from("<I", listed, at + 42)
        name = listed[at + _ENTRY_BYTES : at + _ENTRY_BYTES + name_length].decode()
        if method != 0:
            raise Unable(f"array '{name.removesuffix('.npy')}' in {path} is compressed")
        if offset == _FULL:
            extra = listed[at + _ENTRY_BYTES + name_length :][:extra_length]
            offset = _long_offset(extra, (packed == _FULL) + (whole == _FULL))
        found.append((name, offset))
        at += _ENTRY_BYTES + name_length + extra_length + comment_length
    return found


def _long_offset(extra: bytes, before: int) -> int:
    """The offset in a ZIP64 field, after ``before`` sizes."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == _ZIP64:
            return int(struct.unpack_from("<Q", extra, at + 4 + 8 * before)[0])
        at += 4 + length
    raise ValueError("no long offset")


def _array(file: IO[bytes], path: Path, local: int) -> StoredArray:
    file.seek(local + 26)
    name_length, extra_length = struct.unpack("<HH", file.read(4))
    start = local + _LOCAL_BYTES + name_length + extra_length
    file.seek(start)
    magic = file.read(8)
    if magic[:6] != b"\x93NUMPY":
        raise ValueError("no array")
    wide = magic[6] > 1
    (length,) = struct.unpack("<I" if wide else "<H", file.read(4 if wide else 2))
    header = ast.literal_eval(file.read(length).decode("latin1"))
    if header["fortran_order"] and len(header["shape"]) > 1:
        raise Unable(f"an array in {path} is in Fortran's order")
    if header["descr"] not in _DTYPES:
        raise Unable(f"an array in {path} is of type {header['descr']}")
    return StoredArray(path, file.tell(), _DTYPES[header["descr"]], tuple(int(n) for n in header["shape"]))

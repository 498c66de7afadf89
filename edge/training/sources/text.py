"""Text files as numbers of bytes, 0 to 255: a class per folder, or the byte that follows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge.contracts.errors import DataError

SUFFIXES = frozenset({".txt"})
LENGTH = 256
"""Bytes of an example where nothing else is said."""


def read_texts(paths: Sequence[Path], length: int) -> np.ndarray:
    """The first ``length`` bytes of each file, [N, length] int64, zeros after a short one.

    Raises:
        DataError: a file that cannot be read; it is named.
    """
    x = np.zeros((len(paths), length), np.int64)
    for row, path in zip(x, paths, strict=True):
        data = np.frombuffer(_bytes(path)[:length], np.uint8)
        row[: len(data)] = data
    return x


def read_next_bytes(paths: Sequence[Path], length: int, stride: int) -> dict[str, np.ndarray]:
    """Pieces of the files, ``x`` [N, length], and the byte after each, ``y`` [N], both int64; none spans two files.

    Raises:
        DataError: a file that cannot be read, or none longer than ``length`` bytes.
    """
    x, y = [], []
    for path in paths:
        data = np.frombuffer(_bytes(path), np.uint8).astype(np.int64)
        for start in range(0, len(data) - length, stride):
            x.append(data[start : start + length])
            y.append(data[start + length])
    if not x:
        raise DataError(f"{paths[0].parent}: no text is longer than {length} bytes; set a smaller length in data.toml")
    return {"x": np.stack(x), "y": np.asarray(y, np.int64)}


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}); replace the file") from error

"""``.npz`` files with the array ``x``, mostly ``y``, and others by name that have as many examples."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge.contracts.errors import DataError


def read_archives(paths: Sequence[Path]) -> dict[str, np.ndarray]:
    """The arrays of all files, joined in the order of ``paths``; never unpickled.

    Raises:
        DataError: a file that cannot be read, lacks an array, or whose examples are not like those of the first.
    """
    return joined([(str(path), _read(path)) for path in paths])


def joined(parts: Sequence[tuple[str, dict[str, np.ndarray]]]) -> dict[str, np.ndarray]:
    """Arrays of several files (name, arrays) one after the other.

    Raises:
        DataError: two files whose examples have different shapes, or labels of different kinds; both are named.
    """
    first, arrays = parts[0]
    for where, other in parts[1:]:
        if missing := sorted(arrays.keys() ^ other.keys()):
            raise DataError(f"{where}: arrays {sorted(other)}, in {first} {sorted(arrays)}; {missing} is not in both")
        for name, value in other.items():
            is_named = (arrays[name].dtype.kind in "US", value.dtype.kind in "US")
            if arrays[name].shape[1:] != value.shape[1:]:
                raise DataError(
                    f"{where}: {name} of an example has shape {value.shape[1:]}, in {first} {arrays[name].shape[1:]}; "
                    "give all the same shape"
                )
            if is_named[0] != is_named[1]:
                raise DataError(f"{where}: {name} is {value.dtype}, in {first} {arrays[name].dtype}; give one kind")
    if len(parts) == 1:
        return arrays
    return {name: np.concatenate([part[name] for _, part in parts]) for name in arrays}


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            if "x" not in archive:
                raise DataError(f"{path}: no array ['x'] among {sorted(archive)}; save it with keys x and y")
            arrays = {name: archive[name] for name in ("x", *sorted(set(archive) - {"x"}))}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); replace the file") from error
    x, y = arrays["x"], arrays.get("y", arrays["x"])
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataError(f"{path}: x has shape {x.shape}, y {y.shape}; the first dimension must be the examples")
    # What has another length says something of the file, not of its examples.
    return {name: value for name, value in arrays.items() if value.ndim and len(value) == len(x)}

"""A device's own examples: read from where its owner said, checked, and counted. Nothing here leaves the device.

Sources: a folder of ``.npz`` files (keys ``x`` and ``y``) or one such file; a folder with one sub-folder of images per
class; a CSV file with a header and a ``label`` column; ``package.module:function`` that gives ``(x, y)``.
Fitting them to an artifact (layout, normalisation, batches) is :mod:`edge.training.batches`' work.
"""

from __future__ import annotations

import csv
import importlib
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge.contracts.errors import ConfigError, DataError

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".pgm", ".ppm"})
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class LocalData:
    """Examples as they were found.

    Attributes:
        where: source, for messages.
        x: raw values [N, ...] in their own dtype, or the image files themselves.
        y: labels [N, ...], integers or class names.
    """

    where: str
    x: np.ndarray | tuple[Path, ...]
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)


def read_local_data(source: str) -> LocalData:
    """The examples of ``source``.

    Raises:
        DataError: nothing there, a file that cannot be read (it is named), or lengths that differ.
        ConfigError: images without Pillow installed.
    """
    path = Path(source)
    if not path.exists() and _FUNCTION.fullmatch(source):
        data = _from_function(source)
    elif path.is_dir():
        data = _from_folder(path)
    elif path.suffix == ".npz" and path.is_file():
        data = _from_arrays(str(path), [_read_npz(path)])
    elif path.suffix == ".csv" and path.is_file():
        data = _from_csv(path)
    else:
        raise DataError(
            f"no local data at {source}: a folder of npz files or of image folders, a .csv, a .npz or "
            "package.module:function expected; set --data"
        )
    if len(data.x) != len(data.y) or len(data) == 0:
        raise DataError(f"{data.where}: {len(data.x)} examples with {len(data.y)} labels; give as many, at least one")
    return data


def _from_folder(folder: Path) -> LocalData:
    archives = sorted(folder.glob("*.npz"))
    if archives:
        return _from_arrays(str(folder), [_read_npz(path) for path in archives])
    tables = sorted(folder.glob("*.csv"))
    if len(tables) == 1:
        return _from_csv(tables[0])
    classes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not classes:
        raise DataError(f"{folder}: neither .npz files nor one .csv nor a folder of images per class; fill it")
    return _from_images(folder, classes)


def _read_npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            missing = [key for key in ("x", "y") if key not in archive]
            if missing:
                raise DataError(f"{path}: no array {missing} among {sorted(archive)}; save it with keys x and y")
            x, y = archive["x"], archive["y"]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}); replace the file") from error
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataError(f"{path}: x has shape {x.shape}, y {y.shape}; the first dimension must be the examples")
    return x, y


def _from_arrays(where: str, parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> LocalData:
    if len(parts) == 1:
        return LocalData(where, *parts[0])
    try:
        return LocalData(where, np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))
    except ValueError as error:
        raise DataError(f"{where}: the files do not fit together ({error}); give all the same shape") from error


def _from_images(folder: Path, classes: Sequence[Path]) -> LocalData:
    image_module = pillow()
    files: list[Path] = []
    labels: list[str] = []
    for class_folder in classes:
        found = sorted(p for p in class_folder.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES)
        for path in found:
            try:
                with image_module.open(path) as image:
                    image.verify()
            except Exception as error:  # Pillow's decoders raise nearly anything on damaged files
                raise DataError(f"{path}: is not a readable image ({error}); replace the file") from error
        files += found
        labels += [class_folder.name] * len(found)
    return LocalData(str(folder), tuple(files), np.asarray(labels))


def pillow() -> Any:
    """Pillow's ``Image`` module.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ConfigError(["--data: image folders need Pillow"], hint="pip install 'apportion[images]'") from error


def _from_csv(path: Path) -> LocalData:
    values: list[list[float]] = []
    labels: list[str] = []
    line = 0
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            column = header.index("label") if "label" in header else len(header) - 1
            for row in rows:
                line = rows.line_num
                if len(row) not in (0, len(header)):
                    raise ValueError(f"{len(row)} columns, the header has {len(header)}")
                if row:
                    labels.append(row.pop(column))
                    values.append([float(value) for value in row])
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise DataError(f"{path}: line {line} cannot be read ({error}); replace the file") from error
    is_integer = all(re.fullmatch(r"\s*-?\d+\s*", label) for label in labels)
    return LocalData(str(path), np.asarray(values), np.asarray(labels, dtype=np.int64 if is_integer else None))


def _from_function(source: str) -> LocalData:
    module_name, _, name = source.partition(":")
    try:
        function: Callable[[], Any] = getattr(importlib.import_module(module_name), name)
        found = function()
        x, y = (found["x"], found["y"]) if isinstance(found, Mapping) else found
    except Exception as error:  # the user's own code
        raise DataError(f"{source}: failed with {type(error).__name__}: {error}; it must give (x, y)") from error
    return LocalData(source, np.asarray(x), np.asarray(y))

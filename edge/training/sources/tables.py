"""CSV files and, where pyarrow is installed, Parquet: numbers by column and a label, row by row or in time windows."""

from __future__ import annotations

import csv
import importlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge.contracts.errors import ConfigError, DataError
from edge.training.sources.archives import joined
from edge.training.sources.description import Description

SUFFIXES = frozenset({".csv", ".parquet"})


def read_tables(paths: Sequence[Path], description: Description) -> dict[str, np.ndarray]:
    """Rows or windows of all files: ``x`` [N, columns] or [N, columns, window], ``y`` [N], [N, labels] or none. No
    window spans two files.

    A window's label is the one that most of its rows have, the first of those that are as frequent; of numbers, the
    last row's.

    Raises:
        DataError: a file that cannot be read or lacks a column; fewer rows than a window in all files.
        ConfigError: Parquet without pyarrow.
    """
    parts = []
    for path in paths:
        header, rows = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
        x, y = _columns(path, header, rows, description)
        if description.window:
            x, y = _windows(x, y, description.window, description.stride or description.window)
        parts.append((str(path), {"x": x} if description.unlabelled else {"x": x, "y": y}))
    arrays = joined(parts)
    if description.window and not len(arrays["x"]):
        raise DataError(f"{paths[0].parent}: no file has {description.window} rows, a window; make it smaller")
    return arrays


def _csv(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Header and numbered lines."""
    line = 0
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            rows = []
            for row in reader:
                line = reader.line_num
                if len(row) not in (0, len(header)):
                    raise ValueError(f"{len(row)} columns, the header has {len(header)}")
                if row:
                    rows.append((line, row))
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise DataError(f"{path}: line {line} cannot be read ({error}); replace the file") from error
    return header, rows


def _parquet(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError([f"--data: {path} needs pyarrow to be read"], hint="pip install pyarrow") from error
    try:
        table = parquet.read_table(path)
        columns = [[str(value) for value in column.to_pylist()] for column in table.columns]
    except Exception as error:  # pyarrow's own errors, which need not be there to be named
        raise DataError(f"{path}: cannot be read as Parquet ({error}); replace the file") from error
    return list(table.column_names), [(n, list(row)) for n, row in enumerate(zip(*columns, strict=True), 1)]


def _columns(
    path: Path, header: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]], description: Description
) -> tuple[np.ndarray, np.ndarray]:
    """``x`` [rows, columns] float64 and ``y`` [rows], integers or names, or [rows, labels] float64; zeros of none."""
    label = description.label or ("label" if "label" in header else header[-1] if header else "label")
    labels = () if description.unlabelled else description.labels or (label,)
    chosen = list(description.columns) or [name for name in header if name not in labels]
    missing = [name for name in (*chosen, *labels) if name not in header]
    if missing:
        raise DataError(f"{path}: no column {missing} among {list(header)}; data.toml says which columns to read")
    places = [header.index(name) for name in (*chosen, *description.labels)]
    values = []
    for line, row in rows:
        try:
            values.append([float(row[place]) for place in places])
        except ValueError as error:
            raise DataError(f"{path}: line {line} cannot be read ({error}); replace the file") from error
    numbers = np.asarray(values, np.float64).reshape(len(rows), len(places))
    x = numbers[:, : len(chosen)]
    if description.unlabelled or description.labels:
        return x, numbers[:, len(chosen) :]
    texts = [row[header.index(label)] for _, row in rows]
    is_integer = all(re.fullmatch(r"\s*-?\d+\s*", text) for text in texts)
    return x, np.asarray(texts, dtype=np.int64 if is_integer else np.str_)


def _windows(x: np.ndarray, y: np.ndarray, window: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
    starts = range(0, len(y) - window + 1, stride)
    if not len(starts):
        return np.empty((0, x.shape[1], window)), y[:0]
    parts = np.stack([x[s : s + window].T for s in starts])
    if y.ndim > 1:
        return parts, np.stack([y[s + window - 1] for s in starts])
    return parts, np.asarray([_most(y[s : s + window]) for s in starts])


def _most(labels: np.ndarray) -> np.generic:
    names, first, counts = np.unique(labels, return_index=True, return_counts=True)
    best = np.lexsort((first, -counts))[0]
    chosen: np.generic = names[best]
    return chosen

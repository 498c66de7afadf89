"""Data of the runs behind ``apportion advise``: small enough that a method's course takes a minute or two.

``[data] source = "benchmarks.advice_data:mnist"`` and the repository on PYTHONPATH; files are in the folder that
``data.path`` or APPORTION_DATA names.
"""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.half_size_cifar10 import load as load_half_size
from coordinator.data.datasets import Dataset
from coordinator.data.digits import load_digits_dataset
from coordinator.data.mnist_writers import load_mnist_writers
from coordinator.data.npz_folder import open_arrays

HELD_OUT = 1000
"""Examples that a model is scored on, the first of the file's."""

WINDOW, HOP = 100, 100
"""Samples of one example of the activity recordings, one second, and between the beginnings of two."""

HELD_OUT_SUBJECTS = 5
"""Of the recordings' people, the last by number are scored on and train nothing."""


def mnist(path: Path | None = None, seed: int = 0, holdout: float = 0.0) -> Dataset:
    """MNIST with its writers as owners, scored on 1,000 digits of other writers."""
    return _shorter(load_mnist_writers(_folder(path), seed, holdout))


def cifar10(path: Path | None = None, seed: int = 0, holdout: float = 0.0) -> Dataset:
    """The first 5,000 images of CIFAR-10 at 16x16, scored on 1,000."""
    whole = load_half_size(_folder(path))
    return _shorter(replace(whole, x_train=whole.x_train[:5000], y_train=whole.y_train[:5000]))


def digits(path: Path | None = None, seed: int = 0, holdout: float = 1 / 3) -> Dataset:
    """Scikit-learn's 8x8 digits; always the same third is held out."""
    return load_digits_dataset(path, 1, holdout)


@functools.cache
def _activities(path: Path | None) -> Dataset:
    names = ("signal", "label", "offset", "subject", "device", "label_names")
    found = open_arrays(path, "har_spsw.npz", names)
    x, y, owners = [], [], []
    for recording in np.flatnonzero(found["device"] == 0):
        first, last = int(found["offset"][recording]), int(found["offset"][recording + 1])
        for begin in range(first, last - WINDOW + 1, HOP):
            x.append(found["signal"][begin : begin + WINDOW].reshape(-1))
            y.append(np.bincount(found["label"][begin : begin + WINDOW]).argmax())
            owners.append(int(found["subject"][recording]))
    x_N, y_N, owner_N = np.stack(x), np.asarray(y, np.int64), np.asarray(owners, np.int64)
    is_held = owner_N > np.unique(owner_N)[-HELD_OUT_SUBJECTS - 1]
    mean, std = x_N[~is_held].mean(), x_N[~is_held].std()
    x_N = ((x_N - mean) / std).astype(np.float32)
    classes = tuple(str(name) for name in found["label_names"])
    return Dataset(x_N[~is_held], y_N[~is_held], x_N[is_held], y_N[is_held], classes, owner_N[~is_held])


def activities(path: Path | None = None, seed: int = 0, holdout: float = 0.0) -> Dataset:
    """One second of a phone's accelerometer and gyroscope, [600] float32; five people held out."""
    return _activities(_folder(path))


def _folder(path: Path | None) -> Path | None:
    folder = os.environ.get("APPORTION_DATA", "")
    return path or (Path(folder) if folder else None)


def _shorter(whole: Dataset) -> Dataset:
    return replace(whole, x_test=whole.x_test[:HELD_OUT], y_test=whole.y_test[:HELD_OUT])

"""CIFAR-10 at 16x16, every pixel the mean of four: the orderings' images, at a third of the time of a step.

``[data] source = "benchmarks.half_size_cifar10:load"`` and the repository on PYTHONPATH; the images are in the folder
that ``data.path`` or APPORTION_DATA names.
"""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from coordinator.data.cifar10 import load_cifar10
from coordinator.data.datasets import Dataset


def load(path: Path | None = None, seed: int = 0, holdout: float = 0.0) -> Dataset:
    """All 50,000 and 10,000 images, [3, 16, 16] uint8; decoded once in a process.

    Raises:
        DataError: as :func:`coordinator.data.cifar10.load_cifar10`.
    """
    folder = os.environ.get("APPORTION_DATA", "")
    return _load(path or (Path(folder) if folder else None))


@functools.cache
def _load(path: Path | None) -> Dataset:
    whole = load_cifar10(path, 0, 0.0)
    return replace(whole, x_train=halved(whole.x_train), x_test=halved(whole.x_test))


def halved(images_NCHW: np.ndarray) -> np.ndarray:
    """Means of 2x2 pixels, uint8, halves rounded to even."""
    count, channels, height, width = images_NCHW.shape
    blocks = images_NCHW.reshape(count, channels, height // 2, 2, width // 2, 2)
    means = blocks.sum((3, 5), dtype=np.uint16) / 4
    result: np.ndarray = np.rint(means).astype(np.uint8)
    return result

"""A tiny proxy set for the tests: digits as small colour images, with labels that must not matter."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coordinator.data.datasets import Dataset
from coordinator.data.digits import load_digits_dataset


def build(path: Path | None, seed: int, holdout: float = 1 / 3) -> Dataset:
    """48 digits as images [3, 4, 4] about zero: means of 2x2 pixels, the same in all channels; all of class 0."""
    digits = load_digits_dataset(path, seed, holdout)
    small = digits.x_train[:48].reshape(-1, 1, 4, 2, 4, 2).mean(axis=(3, 5)) / 8 - 1
    x = np.repeat(small, 3, axis=1).astype(np.float32)
    y = np.zeros(len(x), np.int64)
    return Dataset(x[:40], y[:40], x[40:], y[40:], tuple(str(c) for c in range(5)))

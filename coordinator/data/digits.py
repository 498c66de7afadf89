"""scikit-learn's handwritten digits, which come with it."""

from __future__ import annotations

from pathlib import Path

from coordinator.data.datasets import Dataset
from edge.contracts.streams import permutation, stream_seed


def load_digits_dataset(path: Path | None, seed: int, holdout: float) -> Dataset:
    """scikit-learn's 1,797 digits as features [64] in 0..16; a share ``holdout``, drawn by ``seed``, is held out."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = permutation(stream_seed(seed, "holdout"), len(digits.target))
    x = digits.data[order].astype(np.float32)
    y = digits.target[order].astype(np.int64)
    held = int(len(y) * holdout)
    return Dataset(x[held:], y[held:], x[:held], y[:held], tuple(str(c) for c in range(10)))

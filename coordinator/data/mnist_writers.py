"""MNIST packed with the writer of each image: ``mnist.npz``."""

from __future__ import annotations

from pathlib import Path

from coordinator.data.datasets import Dataset
from coordinator.data.npz_folder import open_arrays

FILE = "mnist.npz"


def load_mnist_writers(path: Path | None, seed: int, holdout: float) -> Dataset:
    """MNIST by writer: images [1, 28, 28] uint8, the writer of each; train and test writers are disjoint.

    Raises:
        DataError: ``mnist.npz`` is not in ``path`` or lacks an array.
    """
    import numpy as np

    arrays = open_arrays(path, FILE, ("x_train", "y_train", "writer_train", "x_test", "y_test"))
    return Dataset(
        x_train=arrays["x_train"][:, None],
        y_train=arrays["y_train"].astype(np.int64),
        x_test=arrays["x_test"][:, None],
        y_test=arrays["y_test"].astype(np.int64),
        classes=tuple(str(c) for c in range(10)),
        owner_train=arrays["writer_train"].astype(np.int64),
    )

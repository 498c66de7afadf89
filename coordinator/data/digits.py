"""scikit-learn's handwritten digits, which come with it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.data.datasets import Dataset
from edge.contracts.streams import permutation, stream_seed

if TYPE_CHECKING:
    import numpy as np


def load_digits_dataset(path: Path | None, seed: int, holdout: float) -> Dataset:
    """scikit-learn's 1,797 digits as features [64] in 0..16; a share ``holdout``, drawn by ``seed``, is held out."""
    import numpy as np

    table = _table()
    order = permutation(stream_seed(seed, "holdout"), len(table))
    x = table[order, :-1].astype(np.float32)
    y = table[order, -1].astype(np.int64)
    held = int(len(y) * holdout)
    return Dataset(x[held:], y[held:], x[:held], y[:held], tuple(str(c) for c in range(10)))


def _table() -> np.ndarray:
    """Pixels and class of every digit, float64 [1797, 65], from the file that comes with scikit-learn.

    It is read where it lies: importing scikit-learn takes seconds. Where it is not, scikit-learn is asked.
    """
    import numpy as np

    package = find_spec("sklearn")
    for folder in (package.submodule_search_locations or []) if package else []:
        if (path := Path(folder, "datasets", "data", "digits.csv.gz")).exists():
            return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits

    digits = load_digits()
    return np.column_stack([digits.data, digits.target])

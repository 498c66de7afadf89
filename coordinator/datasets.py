"""Data the coordinator can open: what it hands to devices it starts itself, and what it evaluates on.

Real devices bring their own data; these sources exist for the demo, for examples and for measurements on real datasets.
Nothing is downloaded; a source that needs a folder gets its path from the configuration.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edge.contracts.errors import ApportionError, ConfigError, DataError
from edge.contracts.streams import permutation, stream_seed

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Dataset:
    """Training and held-out examples.

    Attributes:
        x_train, x_test: raw values [N, ...] in the dtype of the source; normalisation is the input spec's business.
        y_train, y_test: class indices [N], int64.
        owner_train: natural owner (writer, subject) of each training example [N], or None.
        classes: ordered class names.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]
    owner_train: np.ndarray | None = None


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


def load_mnist_writers(path: Path | None, seed: int, holdout: float) -> Dataset:
    """MNIST by writer: images [1, 28, 28] uint8, the writer of each; train and test writers are disjoint.

    Raises:
        DataError: ``mnist.npz`` is not in ``path`` or lacks an array.
    """
    import numpy as np

    arrays = open_arrays(path, "mnist.npz", ("x_train", "y_train", "writer_train", "x_test", "y_test"))
    return Dataset(
        x_train=arrays["x_train"][:, None],
        y_train=arrays["y_train"].astype(np.int64),
        x_test=arrays["x_test"][:, None],
        y_test=arrays["y_test"].astype(np.int64),
        classes=tuple(str(c) for c in range(10)),
        owner_train=arrays["writer_train"].astype(np.int64),
    )


def load_cifar10(path: Path | None, seed: int, holdout: float) -> Dataset:
    """CIFAR-10: images [3, 32, 32] uint8 decoded from ``cifar10_jpeg.npz`` in ``path``, its own test set held out.

    Raises:
        DataError: the file is not there, or holds something else.
    """
    import numpy as np

    from coordinator.cifar10 import CLASSES, FILE, decoded, packed_arrays

    arrays = packed_arrays(path)
    x = {s: decoded(arrays[f"jpeg_{s}"], arrays[f"offset_{s}"], where=f"{FILE} ({s})") for s in ("train", "test")}
    y = {s: arrays[f"y_{s}"].astype(np.int64) for s in ("train", "test")}
    return Dataset(x["train"], y["train"], x["test"], y["test"], CLASSES)


def load_movie_reviews(path: Path | None, seed: int, holdout: float) -> Dataset:
    """Movie reviews as word numbers [200] int64 of ``movie_reviews.npz`` in ``path``; the last folds are held out.

    The words are counted in the training folds alone; an example's owner is its fold.

    Raises:
        DataError: the file is not there, or holds something else.
    """
    from coordinator.movie_reviews import CLASSES, packed_reviews, sequences, vocabulary

    reviews, y, fold = packed_reviews(path)
    folds = int(fold.max()) + 1
    is_test = fold >= min(folds - 1, folds - round(folds * holdout))
    train = [review for review, held in zip(reviews, is_test, strict=True) if not held]
    test = [review for review, held in zip(reviews, is_test, strict=True) if held]
    numbers = vocabulary(train)
    return Dataset(
        x_train=sequences(train, numbers),
        y_train=y[~is_test],
        x_test=sequences(test, numbers),
        y_test=y[is_test],
        classes=CLASSES,
        owner_train=fold[~is_test],
    )


def open_arrays(path: Path | None, name: str, keys: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Arrays ``keys`` of the npz file ``path / name``; never unpickles.

    Raises:
        DataError: no path, no file, unreadable file, or a missing array; each with the next step.
    """
    import zipfile

    import numpy as np

    if path is None:
        raise DataError(f"{name}: no data folder is set; set APPORTION_DATA or data.path to the folder that holds it")
    file = path / name
    try:
        with np.load(file, allow_pickle=False) as archive:
            missing = [key for key in keys if key not in archive]
            if missing:
                raise DataError(
                    f"{file}: arrays {missing} are missing, it has {sorted(archive)}; use the packed dataset"
                )
            return {key: archive[key] for key in keys}
    except FileNotFoundError as error:
        raise DataError(f"{file}: no such file; set APPORTION_DATA or data.path to the folder that holds it") from error
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataError(f"{file}: cannot be read ({error}); copy it again") from error


SOURCES: dict[str, Callable[[Path | None, int, float], Dataset]] = {
    "digits": load_digits_dataset,
    "mnist-writers": load_mnist_writers,
    "cifar10": load_cifar10,
    "movie-reviews": load_movie_reviews,
}


def load_dataset(source: str, path: Path | None, seed: int, holdout: float = 1 / 3) -> Dataset:
    """The dataset called ``source``, or what the user's ``package.module:function`` gives for (path, seed, holdout).

    Args:
        holdout: share of the examples to hold out, for a source without a test set of its own.

    Raises:
        ConfigError: unknown source; the message lists the known ones.
        DataError: the data cannot be read.
    """
    if source in SOURCES:
        return SOURCES[source](path, seed, holdout)
    module_name, _, function = source.partition(":")
    if not function:
        known = ", ".join(sorted(SOURCES))
        raise ConfigError([f"$.data.source: '{source}' is not known; use one of {known}, or package.module:function"])
    try:
        loader = getattr(importlib.import_module(module_name), function)
    except Exception as error:  # importing runs the user's own code
        why = f"{type(error).__name__}: {error}"
        raise ConfigError([f"$.data.source: cannot import '{source}' ({why}); is it on PYTHONPATH?"]) from error
    try:
        dataset = loader(path, seed, holdout)
    except ApportionError:
        raise
    except Exception as error:  # as above
        raise DataError(f"{source}(path={path}, seed={seed}) failed: {type(error).__name__}: {error}") from error
    if not isinstance(dataset, Dataset):
        raise DataError(f"{source} returned {type(dataset).__name__}, a coordinator.datasets.Dataset expected")
    return dataset

"""Data the coordinator can open: what it hands to devices it starts itself, and what it evaluates on.

Real devices bring their own data; these sources exist for the demo, for examples and for measurements on real datasets.
Nothing is downloaded; a source that needs a folder gets its path from the configuration. A new one is one new file here
and one line in :data:`SOURCES`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.data.folder import Takes, read_examples, read_folder, require_takes
from edge.contracts.errors import ApportionError, ConfigError, DataError
from edge.training.records import records

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Dataset:
    """Training and held-out examples.

    Attributes:
        x_train, x_test: raw values [N, ...] in the dtype of the source; normalisation is the input spec's business.
        y_train, y_test: class indices [N], int64; for a task records of what its batch has beside ``x``
            (:mod:`edge.training.records`), for which a source may give a mapping of named arrays [N, ...].
        owner_train: natural owner (writer, subject) of each training example [N], or None.
        classes: ordered class names.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]
    owner_train: np.ndarray | None = None


@dataclass(frozen=True)
class DataSource:
    """One line of the registry.

    Attributes:
        target: ``module:function`` that opens it, as an own one does; imported when first opened.
        needs_folder: it reads the folder of ``[data] path``.
    """

    target: str
    needs_folder: bool = True


FOLDER = "folder"
"""The source that reads files as devices do."""

SOURCES: dict[str, DataSource] = {
    FOLDER: DataSource("coordinator.data.folder:read_folder"),
    "digits": DataSource("coordinator.data.digits:load_digits_dataset", needs_folder=False),
    "mnist-writers": DataSource("coordinator.data.mnist_writers:load_mnist_writers"),
    "cifar10": DataSource("coordinator.data.cifar10:load_cifar10"),
    "movie-reviews": DataSource("coordinator.data.movie_reviews:load_movie_reviews"),
}


def load_dataset(
    source: str,
    path: Path | None,
    seed: int,
    holdout: float = 1 / 3,
    *,
    takes: Takes | None = None,
    held_out: Path | None = None,
) -> Dataset:
    """The dataset called ``source``, or what the user's ``package.module:function`` gives for (path, seed, holdout).

    Args:
        source: empty for none, where there is ``held_out``: devices bring their own examples.
        holdout: share of the examples to hold out, for a source without a test set of its own.
        takes: what the model takes, for files.
        held_out: folder of the held-out examples, in place of the source's.

    Raises:
        ConfigError: unknown source; the message lists the known ones.
        DataError: the data cannot be read.
    """
    test = read_examples(held_out, require_takes(takes, str(held_out))) if held_out else None
    if not source and test is not None:
        x, y = test
        return Dataset(x[:0], y[:0], x, y, require_takes(takes, source).classes)
    if source == FOLDER and path is not None:
        wanted = require_takes(takes, source)
        arrays = read_folder(path, seed, holdout, wanted, is_all_for_training=test is not None)
        dataset = Dataset(*arrays, wanted.classes)
    else:
        dataset = _opened(source, path, seed, holdout)
    return dataset if test is None else replace(dataset, x_test=test[0], y_test=test[1])


def _opened(source: str, path: Path | None, seed: int, holdout: float) -> Dataset:
    module_name, _, function = (SOURCES[source].target if source in SOURCES else source).partition(":")
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
        raise DataError(f"{source} returned {type(dataset).__name__}, a coordinator.data.datasets.Dataset expected")
    named = {key: getattr(dataset, f"y_{key}") for key in ("train", "test")}
    counts = {"train": len(dataset.x_train), "test": len(dataset.x_test)}
    made = {k: records(v, counts[k]) if isinstance(v, Mapping) else v for k, v in named.items()}
    return replace(dataset, y_train=made["train"], y_test=made["test"])

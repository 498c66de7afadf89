"""``source = "folder"`` and ``[evaluation] data``: files, read at the coordinator as devices read their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edge.contracts.errors import ConfigError, DataError
from edge.contracts.streams import permutation, stream_seed

if TYPE_CHECKING:
    import numpy as np

    from edge.contracts.manifest import InputSpec
    from edge.training.local_data import LocalData
    from edge.training.task_tensors import BatchSpec

TRAIN, TEST = "train", "test"
"""Sub-folders of a folder that is divided already."""


@dataclass(frozen=True)
class Takes:
    """What a model takes, which decides how files are read: the size of images, the order of classes.

    Attributes:
        classes: ordered names; labels that are names are looked up here.
        task: what a batch of the run's task has; None: a class for each example.
    """

    input: InputSpec
    classes: tuple[str, ...]
    task: BatchSpec | None = None


def read_examples(folder: Path, takes: Takes) -> tuple[np.ndarray, np.ndarray]:
    """Raw examples [N, *input.shape] of the files in ``folder``, and class indices [N] int64, or what a task needs.

    Raises:
        DataError: they cannot be read, or are not what the model takes.
        ConfigError: images without Pillow installed.
    """
    from edge.training.batches import fit_input, fit_labels
    from edge.training.local_data import read_local_data

    data = read_local_data(str(folder))
    x = fit_input(data, takes.input)
    return x, fit_labels(data, takes.classes) if takes.task is None else _checked(data, takes.task)


def _checked(data: LocalData, task: BatchSpec) -> np.ndarray:
    """The arrays that ``task`` reads, checked; as they are, since they are fitted where they are used."""
    from edge.training.records import entry, records
    from edge.training.task_tensors import array_name, fit_tensors

    fit_tensors(data, task)
    return records({name: entry(data.y, name) for name in map(array_name, task.tensors)}, len(data))


def read_folder(
    folder: Path, seed: int, holdout: float, takes: Takes, *, is_all_for_training: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and held-out examples (x, y, x, y) of a folder.

    Those of its sub-folders ``train`` and ``test`` where it has both; else a share ``holdout``, drawn by ``seed``, is
    held out, or nothing with ``is_all_for_training``.

    Raises:
        DataError, ConfigError: as :func:`read_examples`; also too few examples to hold some out.
    """
    import numpy as np

    if (folder / TRAIN).is_dir() and (folder / TEST).is_dir():
        return (*read_examples(folder / TRAIN, takes), *read_examples(folder / TEST, takes))
    x, y = read_examples(folder, takes)
    held = 0 if is_all_for_training else int(len(y) * holdout)
    if held == 0 and not is_all_for_training:
        raise DataError(
            f"{folder}: {len(y)} examples, of which $.evaluation.holdout = {holdout:g} holds out none; give more, or "
            "held-out examples of their own in $.evaluation.data"
        )
    order = permutation(stream_seed(seed, "holdout"), len(y))
    test, train = np.sort(order[:held]), np.sort(order[held:])
    return x[train], y[train], x[test], y[test]


def require_takes(takes: Takes | None, source: str) -> Takes:
    """``takes``, where a source needs it.

    Raises:
        ConfigError: it is None.
    """
    if takes is None:
        raise ConfigError([f"$.data.source: '{source}' is read for a model, and none is named here"])
    return takes

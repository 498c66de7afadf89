"""Two tasks on which a trained model goes on to other data, for ``benchmarks.sparse_updates``.

Images: CIFAR-10 at 16x16, trained on its first five classes; devices have few images of the other five. Activities:
trained on what phones recorded, devices have what watches of the same people recorded, five other people are scored.
``[data] source = "benchmarks.sparse_update_data:images"`` and the repository on PYTHONPATH; files are in the folder
that ``data.path`` or APPORTION_DATA names.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from benchmarks.half_size_cifar10 import load as load_half_size
from coordinator.data.datasets import Dataset
from coordinator.data.npz_folder import open_arrays

BEFORE = 5
"""Classes of the images that the model is trained on before; devices have the others."""
IMAGES, SCORED = 2500, 2000
"""Images of all devices together, and held-out ones."""
WINDOW = 100
"""Samples of one example of the recordings, one second, none in two examples."""
HELD_OUT_SUBJECTS = 5
PHONE, WATCH = 0, 1


class SignalNetwork(nn.Module):
    """Five convolutions with norms over [6, 100], strides of 2 from the second on, global mean, ``fc``."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        widths = (6, 32, 48, 64, 96, 128)
        for i in range(5):
            stride = 1 if i == 0 else 2
            self.add_module(f"conv{i + 1}", nn.Conv1d(widths[i], widths[i + 1], 5, stride, 2, bias=False))
            self.add_module(f"bn{i + 1}", nn.BatchNorm1d(widths[i + 1]))
        self.relu = nn.ReLU()
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """[B, 6, 100] -> [B, classes]."""
        for i in range(5):
            x = self.relu(self.get_submodule(f"bn{i + 1}")(self.get_submodule(f"conv{i + 1}")(x)))
        return self.fc(x.mean(2))


def signal_network(*, classes: int) -> nn.Module:
    """The network of the activities."""
    return SignalNetwork(classes)


def images(path: Path | None = None, seed: int = 0, holdout: float = 0.0) -> Dataset:
    """The first 2,500 images of the last five classes, scored on the first 2,000 held-out ones of these."""
    return _classes(path, first=BEFORE, count=IMAGES, scored=SCORED)


def images_before(path: Path | None = None) -> Dataset:
    """All images of the first five classes, scored on 2,000."""
    return _classes(path, first=0, count=None, scored=SCORED)


def activities(path: Path | None = None, seed: int = 0, holdout: float = 0.0) -> Dataset:
    """What watches recorded, [6, 100] float32, owned by their people; five other people's is scored."""
    return _recordings(_folder(path), WATCH)


def activities_before(path: Path | None = None) -> Dataset:
    """What phones recorded, the same people scored."""
    return _recordings(_folder(path), PHONE)


def _classes(path: Path | None, *, first: int, count: int | None, scored: int) -> Dataset:
    whole = load_half_size(_folder(path))
    classes = np.arange(first, first + BEFORE)
    train, test = (np.flatnonzero(np.isin(y, classes)) for y in (whole.y_train, whole.y_test))
    train, test = train[:count], test[:scored]
    return Dataset(
        whole.x_train[train],
        whole.y_train[train] - first,
        whole.x_test[test],
        whole.y_test[test] - first,
        tuple(str(i) for i in range(BEFORE)),
    )


@functools.cache
def _recordings(path: Path | None, device: int) -> Dataset:
    names = ("signal", "label", "offset", "subject", "device", "label_names")
    found = open_arrays(path, "har_spsw.npz", names)
    x, y, owners = [], [], []
    for recording in np.flatnonzero(found["device"] == device):
        first, last = int(found["offset"][recording]), int(found["offset"][recording + 1])
        for begin in range(first, last - WINDOW + 1, WINDOW):
            x.append(found["signal"][begin : begin + WINDOW].T)
            y.append(np.bincount(found["label"][begin : begin + WINDOW]).argmax())
            owners.append(int(found["subject"][recording]))
    x_N, y_N, owner_N = np.stack(x).astype(np.float32), np.asarray(y, np.int64), np.asarray(owners, np.int64)
    is_held = owner_N > np.unique(owner_N)[-HELD_OUT_SUBJECTS - 1]
    mean, std = (f(x_N[~is_held], (0, 2), keepdims=True) for f in (np.mean, np.std))
    x_N = ((x_N - mean) / std).astype(np.float32)
    classes = tuple(str(name) for name in found["label_names"])
    return Dataset(x_N[~is_held], y_N[~is_held], x_N[is_held], y_N[is_held], classes, owner_N[~is_held])


def _folder(path: Path | None) -> Path | None:
    folder = os.environ.get("APPORTION_DATA", "")
    return path or (Path(folder) if folder else None)

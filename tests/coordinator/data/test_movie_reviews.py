"""Movie reviews become word numbers counted in the training folds alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.data.datasets import load_dataset
from coordinator.data.movie_reviews import FILE, LENGTH, sequences, vocabulary
from edge.contracts.errors import DataError


def write(folder: Path, reviews: list[bytes]) -> None:
    offset = np.cumsum([0, *map(len, reviews)])
    y = np.arange(len(reviews), dtype=np.uint8) % 2
    fold = np.arange(len(reviews), dtype=np.uint8) // 2
    np.savez(folder / FILE, text=np.frombuffer(b"".join(reviews), np.uint8), offset=offset, y=y, fold=fold)


def test_frequent_words_come_first_and_punctuation_not_at_all() -> None:
    assert vocabulary([b"good film , good end .", b"bad film , bad end"], 3) == {b"bad": 1, b"end": 2, b"film": 3}


def test_zeros_stand_before_and_words_beyond_the_length_are_dropped() -> None:
    x = sequences([b"b x a", b"a a b b"], {b"a": 1, b"b": 2}, 3)
    assert x.tolist() == [[0, 2, 1], [1, 1, 2]]
    assert x.dtype == np.int64


def test_last_folds_are_held_out_and_not_counted(tmp_path: Path) -> None:
    write(tmp_path, [b"one two", b"one", b"one two", b"two one", b"rare", b"rare rare one"])
    data = load_dataset("movie-reviews", tmp_path, 0, holdout=0.3)
    assert data.x_train.shape == (4, LENGTH)
    assert data.owner_train is not None
    assert data.owner_train.tolist() == [0, 0, 1, 1]
    assert data.x_train[:, -2:].tolist() == [[1, 2], [0, 1], [1, 2], [2, 1]]
    assert data.x_test[:, -1].tolist() == [0, 1]  # "rare" was in no training fold
    assert (data.y_test.tolist(), data.classes) == ([0, 1], ("negative", "positive"))
    assert len(load_dataset("movie-reviews", tmp_path, 0, holdout=0.0).y_test) == 2  # a fold at least


def test_missing_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=FILE):
        load_dataset("movie-reviews", tmp_path, 0)

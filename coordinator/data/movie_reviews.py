"""Movie reviews (polarity v2.0) as sequences of word numbers: ``movie_reviews.npz``, counted when it is opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.data.datasets import Dataset
from coordinator.data.npz_folder import open_arrays

if TYPE_CHECKING:
    import numpy as np

FILE = "movie_reviews.npz"
CLASSES = ("negative", "positive")
WORDS = 1000
"""Symbols are 1 for the most frequent word to so many; 0 stands before a short review. Source: PriSM, its LSTM."""
LENGTH = 200


def vocabulary(reviews: Sequence[bytes], words: int = WORDS) -> dict[bytes, int]:
    """The most frequent words -> 1, 2, ...; equally frequent ones in the order of their bytes."""
    counts = Counter(word for review in reviews for word in review.split() if word.isalpha())
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ranked[:words], 1)}


def sequences(reviews: Sequence[bytes], numbers: Mapping[bytes, int], length: int = LENGTH) -> np.ndarray:
    """The first ``length`` known words of each review, [N, length] int64, zeros before them; other words are left out.

    Zeros come first because an LSTM's classifier reads its last step.
    """
    import numpy as np

    x = np.zeros((len(reviews), length), np.int64)
    for row, review in zip(x, reviews, strict=True):
        known = [numbers[word] for word in review.split() if word in numbers][:length]
        row[length - len(known) :] = known
    return x


def packed_reviews(path: Path | None) -> tuple[list[bytes], np.ndarray, np.ndarray]:
    """Texts, labels and the fold of each, 0 to 9.

    Raises:
        DataError: as :func:`coordinator.data.npz_folder.open_arrays`.
    """
    import numpy as np

    arrays = open_arrays(path, FILE, ("text", "offset", "y", "fold"))
    text, offset = arrays["text"].tobytes(), arrays["offset"].tolist()
    texts = [text[begin:end] for begin, end in pairwise(offset)]
    return texts, arrays["y"].astype(np.int64), arrays["fold"].astype(np.int64)


def load_movie_reviews(path: Path | None, seed: int, holdout: float) -> Dataset:
    """Movie reviews as word numbers [200] int64 of ``movie_reviews.npz`` in ``path``; the last folds are held out.

    The words are counted in the training folds alone; an example's owner is its fold.

    Raises:
        DataError: the file is not there, or holds something else.
    """
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

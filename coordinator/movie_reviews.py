"""Movie reviews (polarity v2.0) as sequences of word numbers: ``movie_reviews.npz``, counted when it is opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

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
        DataError: as :func:`coordinator.datasets.open_arrays`.
    """
    import numpy as np

    from coordinator.datasets import open_arrays

    arrays = open_arrays(path, FILE, ("text", "offset", "y", "fold"))
    text, offset = arrays["text"].tobytes(), arrays["offset"].tolist()
    texts = [text[begin:end] for begin, end in pairwise(offset)]
    return texts, arrays["y"].astype(np.int64), arrays["fold"].astype(np.int64)

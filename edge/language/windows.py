"""Symbols of documents as the windows that a model is trained on: packed one after the other, or each on its own."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

IGNORED = -100
"""A target that counts nothing."""

Symbols = tuple[np.ndarray, np.ndarray]
"""Symbols int32 [M] of a text, and whether each is learnt, bool [M]."""


def windows(documents: Iterable[Symbols], *, length: int, stride: int, fill: int, is_padded: bool) -> Symbols:
    """Windows ``x`` and what follows each of their symbols ``y``, both int32 [N, length].

    What is left at the end is filled with ``fill`` that counts nothing. Windows in which nothing counts are left out.

    Args:
        stride: symbols from the beginning of a window to that of the next.
        is_padded: each document has windows of its own; else they are put one after the other.
    """
    if not is_padded:
        parts = list(documents)
        documents = [(_joined([ids for ids, _ in parts], np.int32), _joined([learnt for _, learnt in parts], np.bool_))]
    found = [_of_text(ids, learnt, length, stride, fill) for ids, learnt in documents]
    x, y = (_joined([pair[side] for pair in found], np.int32, (0, length)) for side in (0, 1))
    return x, y


def _of_text(ids: np.ndarray, learnt: np.ndarray, length: int, stride: int, fill: int) -> Symbols:
    count = len(ids) - 1  # the last has nothing after it
    if count < 1:
        return np.empty((0, length), np.int32), np.empty((0, length), np.int32)
    # The first window that reaches the end is the last.
    starts = np.arange(0, max(1, count - length + stride), stride)
    whole = int(starts[-1]) + length
    inputs = np.full(max(whole, count), fill, np.int32)
    targets = np.full(max(whole, count), IGNORED, np.int32)
    inputs[:count] = ids[:-1]
    targets[:count] = np.where(learnt[1:], ids[1:], IGNORED)
    places = starts[:, None] + np.arange(length)
    x, y = inputs[places], targets[places]
    counts = (y != IGNORED).any(1)
    return x[counts], y[counts]


def _joined(parts: list[np.ndarray], dtype: type[np.generic], shape: tuple[int, ...] = (0,)) -> np.ndarray:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(shape, dtype)

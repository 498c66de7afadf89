"""Weighted sums in float64 at the speed of memory: in pieces that stay in a core's cache, without temporaries.

The operations on an entry and their order are those of ``total += weight * value``, and two threads never share an
entry, so results are the same to the bit on any machine.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

PIECE = 65_536
"""Entries at a time: 512 KiB in float64. Measured, x86-64 with two threads and four updates together: 32,768 costs 10%
more, twice as many no less."""

SHARED_FROM = 2**19
"""Entries from which a second thread takes half of the pieces."""

TOGETHER = 4
"""Updates whose terms wait for each other; a piece of a total is then fetched and written once for all of them."""

MOST_WAITING_BYTES = 64 << 20
"""Of values; with more, fewer updates wait."""

Term = tuple[np.ndarray, np.ndarray, float]
"""(Total [float64, changed], value [the same shape], weight)."""

_Piece = TypeVar("_Piece")


class WeightedSums:
    """Adds weight times value to totals, in the order given for every entry.

    Values that nobody can write to, such as an update's file as it lies on disk, may wait for those of the next
    updates; totals are complete after :meth:`settle`.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, list[Term]] = {}
        self._updates = 0
        self._bytes = 0

    def add(self, terms: Iterable[Term]) -> None:
        """To every total its value times its weight; the terms of one update, each total in it once."""
        may_wait = True
        for term in terms:
            self._waiting.setdefault(id(term[0]), []).append(term)
            self._bytes += term[1].nbytes
            may_wait = may_wait and not term[1].flags.writeable
        self._updates += 1
        if not may_wait or self._updates >= TOGETHER or self._bytes > MOST_WAITING_BYTES:
            self.settle()

    def settle(self) -> None:
        """Add what waits."""
        pieces: list[list[Term]] = []
        for terms in self._waiting.values():
            pieces += _pieces(terms)
        self._waiting, self._updates, self._bytes = {}, 0, 0
        _by_two_threads(_add, pieces, [len(terms) * terms[0][0].size for terms in pieces])


def _pieces(terms: Sequence[Term]) -> list[list[Term]]:
    """The terms of one total, cut into terms of its pieces."""
    total = terms[0][0]
    if total.size <= PIECE:
        return [list(terms)]
    if not all(total.flags.c_contiguous and value.flags.c_contiguous for _, value, _ in terms):
        for _, value, weight in terms:
            total += np.multiply(value, weight, dtype=np.float64)
        return []
    flat = total.reshape(-1)
    values = [(value.reshape(-1), weight) for _, value, weight in terms]
    return [
        [(flat[at : at + PIECE], value[at : at + PIECE], weight) for value, weight in values]
        for at in range(0, total.size, PIECE)
    ]


def _add(pieces: Sequence[Sequence[Term]]) -> None:
    buffer = np.empty(PIECE)
    for terms in pieces:
        for total, value, weight in terms:
            term = buffer[: value.size].reshape(value.shape)
            np.copyto(term, value, casting="unsafe")
            np.multiply(term, weight, out=term)
            np.add(total, term, out=total)


def quotients(terms: Iterable[tuple[np.ndarray, float, np.dtype[Any]]]) -> list[np.ndarray]:
    """Each total [float64] divided by its weight, in a dtype; whole numbers are rounded to the nearest."""
    results: list[np.ndarray] = []
    pieces: list[tuple[np.ndarray, float, np.ndarray]] = []
    for total, weight, dtype in terms:
        # One dimension: a scalar has a piece, too.
        flat, result = total.reshape(-1), np.empty(total.size, dtype)
        for at in range(0, total.size, PIECE):
            pieces.append((flat[at : at + PIECE], weight, result[at : at + PIECE]))
        results.append(result.reshape(total.shape))
    _by_two_threads(_divide, pieces, [len(total) for total, _, _ in pieces])
    return results


def _divide(pieces: Sequence[tuple[np.ndarray, float, np.ndarray]]) -> None:
    buffer = np.empty(PIECE)
    for total, weight, result in pieces:
        mean = np.divide(total, weight, out=buffer[: len(total)])
        if result.dtype.kind in "iu":
            np.rint(mean, out=mean)
        np.copyto(result, mean, casting="unsafe")


def _by_two_threads(work: Callable[[Sequence[_Piece]], None], pieces: Sequence[_Piece], entries: list[int]) -> None:
    """Have ``work`` done on ``pieces``; a second thread takes half of them where they have many entries."""
    ends = list(itertools.accumulate(entries))
    if not ends or ends[-1] < SHARED_FROM or (os.cpu_count() or 1) < 2:
        work(pieces)
        return
    middle = bisect.bisect(ends, ends[-1] // 2)
    other = _second_thread().submit(work, pieces[middle:])
    work(pieces[:middle])
    other.result()


@functools.cache
def _second_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="aggregation")


def are_all_finite(values: Iterable[np.ndarray]) -> bool:
    """Whether no array holds NaN or infinities; one pass, no array of flags."""
    # A sum is finite only when all its terms are. In float32 it may leave the range where they are; then once more.
    floats = [value for value in values if value.dtype.kind == "f"]
    with np.errstate(invalid="ignore", over="ignore"):
        if math.isfinite(sum(float(np.add.reduce(value, axis=None)) for value in floats)):
            return True
        return all(math.isfinite(np.add.reduce(value, axis=None, dtype=np.float64)) for value in floats)


def squared_difference(value: np.ndarray, origin: np.ndarray) -> float:
    """Sum of the squared differences of two arrays of one shape, in float64 and without a copy of either."""
    total = 0.0
    values, origins = value.reshape(-1), origin.reshape(-1)
    for at in range(0, values.size, PIECE):
        moved = np.subtract(values[at : at + PIECE], origins[at : at + PIECE], dtype=np.float64)
        total += float(np.add.reduce(np.square(moved, out=moved)))
    return total

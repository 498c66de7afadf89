"""Windows of symbols, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge.language.windows import Symbols, windows

FILL, OUT = 9, -100


def text(ids: Sequence[int], unlearnt: int = 0) -> Symbols:
    return np.asarray(ids, np.int32), np.arange(len(ids)) >= unlearnt


def found(documents: list[Symbols], **more: int | bool) -> tuple[list[list[int]], list[list[int]]]:
    x, y = windows(documents, **{"length": 4, "stride": 4, "fill": FILL, "is_padded": False, **more})  # type: ignore[arg-type]
    assert x.dtype == y.dtype == np.int32
    return x.tolist(), y.tolist()


def test_packed_documents_follow_each_other_and_the_end_is_filled() -> None:
    x, y = found([text([1, 2, 0]), text([3, 4, 5, 0])])
    assert x == [[1, 2, 0, 3], [4, 5, FILL, FILL]]
    assert y == [[2, 0, 3, 4], [5, 0, OUT, OUT]]


def test_padded_documents_have_windows_of_their_own() -> None:
    x, y = found([text([1, 2, 0]), text([3, 4, 5, 6, 7, 0])], is_padded=True)
    assert x == [[1, 2, FILL, FILL], [3, 4, 5, 6], [7, FILL, FILL, FILL]]
    assert y == [[2, 0, OUT, OUT], [4, 5, 6, 7], [0, OUT, OUT, OUT]]


def test_only_what_is_learnt_counts_and_a_window_without_is_left_out() -> None:
    x, y = found([text([1, 2, 3, 4, 5, 6, 7, 8, 0], unlearnt=6)], is_padded=True)
    assert x == [[5, 6, 7, 8]]
    assert y == [[OUT, 7, 8, 0]]


def test_a_smaller_stride_overlaps_and_the_first_window_at_the_end_is_the_last() -> None:
    x, y = found([text([1, 2, 3, 4, 5, 6, 0])], stride=2)
    assert x == [[1, 2, 3, 4], [3, 4, 5, 6]]
    assert y == [[2, 3, 4, 5], [4, 5, 6, 0]]


def test_no_document_gives_no_window() -> None:
    assert found([]) == ([], [])
    assert found([text([0])], is_padded=True) == ([], [])

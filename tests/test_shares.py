"""A share keeps files together, in an order of its own for each commit, and begins nothing after its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.shares import Share

FILES = [f"tests/test_{name}.py" for name in "abcdefgh"]


def _items() -> list[Any]:
    return [SimpleNamespace(location=(file, number, "test")) for file in FILES for number in range(3)]


def _order(text: str, *first: str) -> list[tuple[str, int]]:
    items = _items()
    Share(text, 60, first).pytest_collection_modifyitems(cast("list[pytest.Item]", items))
    return [item.location[:2] for item in items]


def test_order_is_drawn_by_its_text_and_leaves_files_whole() -> None:
    first = _order("1f3a")
    assert first == _order("1f3a")
    assert first != _order("77b0")
    assert sorted(first) == sorted(_order("77b0"))
    assert [number for _, number in first] == [0, 1, 2] * len(FILES)
    assert [file for file, _ in first[::3]] != FILES


def test_what_changed_comes_first() -> None:
    found = [file for file, _ in _order("1f3a", "tests/test_h.py", "tests/test_c.py", "elsewhere")[::3]]
    assert set(found[:2]) == {"tests/test_h.py", "tests/test_c.py"}
    rest = [file for file, _ in _order("1f3a")[::3] if file not in found[:2]]
    assert found[2:] == rest
    assert _order("1f3a", "tests") == _order("1f3a")


def test_nothing_begins_after_the_end_and_the_reason_says_where_it_runs() -> None:
    Share("1f3a", 60).pytest_runtest_setup()
    with pytest.raises(pytest.skip.Exception, match=r"share of 0 minutes; the tier's own target runs it"):
        Share("1f3a", 0).pytest_runtest_setup()

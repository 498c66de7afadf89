"""A budget as people read it."""

from __future__ import annotations

from profiles.budget import budget_in_words


def test_no_budget_is_no_limit() -> None:
    assert budget_in_words(0) == "no limit"
    assert budget_in_words(160 * 2**20) == "160 MB"
    assert budget_in_words(2**20 * 3 // 2) == "1.5 MB"

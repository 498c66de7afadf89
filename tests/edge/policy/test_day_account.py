"""What is counted for a day, whatever the device's clock says."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.policy.day_account import DayAccount


@pytest.mark.parametrize(
    ("now", "orders"),
    [("2026-11-23", ("a",)), ("2026-11-22", ("a",)), ("2026-11-21", ("a",)), ("2026-11-24", ()), ("2026-11-20", ())],
)
def test_clock_that_was_years_ahead_is_not_counted_on_with(tmp_path: Path, now: str, orders: tuple[str, ...]) -> None:
    account = DayAccount(tmp_path / "day.json")
    account.take("2026-11-23", "a", 10)
    assert DayAccount(tmp_path / "day.json").of(now).orders == orders

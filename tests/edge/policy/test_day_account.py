"""What is counted for a day, whatever the device's clock says."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.policy import day_account
from edge.policy.day_account import DayAccount


@pytest.mark.parametrize(
    ("now", "orders"),
    [("2026-11-23", ("a",)), ("2026-11-22", ("a",)), ("2026-11-21", ("a",)), ("2026-11-24", ()), ("2026-11-20", ())],
)
def test_clock_that_was_years_ahead_is_not_counted_on_with(tmp_path: Path, now: str, orders: tuple[str, ...]) -> None:
    account = DayAccount(tmp_path / "day.json")
    account.take("2026-11-23", "a", 10)
    assert DayAccount(tmp_path / "day.json").of(now).orders == orders


def test_orders_of_a_day_are_counted_without_end_and_kept_by_name_up_to_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(day_account, "NAMED", 10)
    account = DayAccount(tmp_path / "day.json")
    sizes = []
    for number in range(24):
        account.take("2026-11-23", f"{number:064x}", 1)
        account.take("2026-11-23", f"{number:064x}", 1)  # further bytes of the same order
        account.upload("2026-11-23", f"{number:064x}", 2)
        account.upload("2026-11-23", f"{number:064x}", 2)
        sizes.append((tmp_path / "day.json").stat().st_size)
    day = DayAccount(tmp_path / "day.json").of("2026-11-23")
    assert (day.order_count, len(day.orders), len(day.uploaded)) == (24, 10, 10)
    assert (day.down, day.up) == (48, 48)
    assert max(sizes) < sizes[10] + 20
    account.take("2026-11-23", f"{0:064x}", 0)  # forgotten: it counts again, for the owner
    assert account.of("2026-11-23").order_count == 25

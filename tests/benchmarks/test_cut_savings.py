"""The table of what cuts save: shares are of the whole model's, memory is above the idle trainer."""

from __future__ import annotations

import pytest

from benchmarks.cut_savings import row, schedule, table

WHOLE = {
    "step_ms": 200.0,
    "trainer_peak_mb": 150.0,
    "idle_rss_mb": 50.0,
    "predicted_peak_mb": 145.0,
    "parameters": 11_000_000,
}


def test_shares_are_of_the_whole_model() -> None:
    small = WHOLE | {"step_ms": 50.0, "trainer_peak_mb": 75.0, "predicted_peak_mb": 80.0, "parameters": 9_000}
    found = row("prism:0.2", small, WHOLE)
    assert (found["time_share"], found["memory_share"]) == (0.25, 0.25)
    assert (found["peak_mb"], found["predicted_mb"]) == (25.0, 30.0)
    assert row("whole", WHOLE, WHOLE)["time_share"] == 1


def test_table_has_a_line_for_every_cut() -> None:
    lines = table([row("whole", WHOLE, WHOLE)]).splitlines()
    assert len(lines) == 3
    assert lines[2] == "| `whole` | 200 | 1.000 | 100 | 95 | 1.00 | 11,000,000 |"


@pytest.mark.slow
def test_schedule_begins_with_the_scaled_network_and_names_rounds_of_every_step() -> None:
    steps = schedule("resnet20_slt", 0.5)
    assert [label for label, _ in steps] == [f"step {n}" for n in range(9)]
    assert steps[0][1] == "slt:0.5,round=0"
    rounds = [int(cut.partition("round=")[2]) for _, cut in steps]
    assert rounds == sorted(set(rounds))

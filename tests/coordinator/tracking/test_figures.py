"""Names of figures follow the paths in metrics.jsonl; what is no number is left out."""

from __future__ import annotations

import math

from coordinator.tracking.figures import device_figures, round_figures
from tests.builders import train_report


def test_every_number_of_a_line_has_the_name_of_its_path() -> None:
    entry = {
        "round": 3,
        "attempt": 1,
        "program": "train",
        "train_loss": 0.5,
        "torch_loaded": True,
        "runtimes": {"torch": 2},
        "evaluation": {"server": {"accuracy": 0.25}},
        "policy_refusals": {"pi-07": "policy"},
        "histogram": [1, 2],
        "gone": math.nan,
    }
    assert round_figures(entry) == {
        "round/train_loss": 0.5,
        "round/torch_loaded": 1.0,
        "round/runtimes/torch": 2.0,
        "round/evaluation/server/accuracy": 0.25,
    }


def test_rounds_of_statistics_are_apart() -> None:
    assert round_figures({"round": 3, "program": "stats", "reports": 2}) == {"stats/reports": 2.0}


def test_a_device_without_a_thermometer_has_no_temperature() -> None:
    found = device_figures(train_report("a", "pi-07", 0, temperature_c=None, battery_percent=55.0, budget_bytes=0))
    assert found["battery_percent"] == 55.0
    assert found["trainer_peak_bytes"] == 3.0
    assert "temperature_c" not in found
    assert "budget_bytes" not in found  # there is no limit

"""Processor time, and counters of energy as the system's files have them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from edge.system.energy import EnergyMeter


def counter(root: Path, name: str, value: int, *, end: int = 0) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")
    if end:
        (path.parent / "max_energy_range_uj").write_text(str(end))
    return path


def test_processor_time_is_of_all_that_this_process_did(tmp_path: Path) -> None:
    meter, begun = EnergyMeter(tmp_path), time.process_time()
    while time.process_time() - begun < 0.02:
        pass
    assert meter.spent().cpu_s >= 0.02


def test_without_a_counter_no_energy_is_said(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path).spent().joules is None


def test_joules_are_the_sum_of_packages_and_boards_not_of_their_parts(tmp_path: Path) -> None:
    package = counter(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", 1_000_000)
    core = counter(tmp_path, "sys/class/powercap/intel-rapl:0:0/energy_uj", 500_000)
    board = counter(tmp_path, "sys/class/hwmon/hwmon3/energy1_input", 0)
    meter = EnergyMeter(tmp_path)
    for path, value in ((package, 3_500_000), (core, 2_000_000), (board, 250_000)):
        path.write_text(str(value))
    assert meter.spent().joules == pytest.approx(2.75)


def test_counter_that_began_anew_is_counted_over_its_end(tmp_path: Path) -> None:
    path = counter(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", 9_000_000, end=10_000_000)
    meter = EnergyMeter(tmp_path)
    path.write_text("500000")
    assert meter.spent().joules == pytest.approx(1.5)


def test_counter_that_goes_away_leaves_nothing_to_say(tmp_path: Path) -> None:
    path = counter(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", 9_000_000)
    meter = EnergyMeter(tmp_path)
    path.unlink()
    assert meter.spent().joules is None

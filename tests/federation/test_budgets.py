"""The demo's budgets bind: every device stays under its own, and the next larger level would not have.

Budgets are read from the example's file. Memory is measured by real agents, as their reports tell it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.cli.assembly import start_run
from coordinator.cli.open_run import RunOptions
from coordinator.config.run_config import RunConfig
from coordinator.exporting.cut_exporter import dense_module
from coordinator.methods import build_method
from coordinator.planning.planner import MB
from coordinator.run_file.loading import load_config
from coordinator.submodels.values import Level

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.runtime]

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.toml"


def first_rounds(config: RunConfig, run_dir: Path) -> list[dict[str, Any]]:
    """The device table after two rounds of ``config``: a trainer reaches its peak with its second order."""
    replace = msgspec.structs.replace
    short = replace(
        config,
        federation=replace(config.federation, rounds=2),
        evaluation=replace(config.evaluation, every=0),
        cohort=replace(config.cohort, min_reports=config.cohort.size),
    )
    return list(start_run(short, run_dir, RunOptions(quiet=True))["device_table"])


@dataclass(frozen=True)
class Demo:
    """The demo's configuration, its levels by name (largest first), and its first rounds."""

    config: RunConfig
    levels: tuple[Level, ...]
    table: list[dict[str, Any]]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    config = load_config(EXAMPLE)
    levels = build_method(config.method.name, dense_module(config), config.method.options).levels()
    return Demo(config, levels, first_rounds(config, tmp_path_factory.mktemp("budgets") / "run"))


def test_budgets_give_every_level_of_the_ladder(demo: Demo) -> None:
    budgets = [round(group.budget_mb * MB) for group in demo.config.cohort.local for _ in range(group.count)]
    assert [row["budget_bytes"] for row in demo.table] == budgets
    assert len(set(budgets)) >= 3
    assert {row["level"] for row in demo.table} == {level.name for level in demo.levels}
    assert len(demo.levels) >= 3


def test_every_device_stays_under_its_budget(demo: Demo) -> None:
    for row in demo.table:
        assert 0 < row["measured_peak_bytes"] <= row["budget_bytes"], row
        assert row["over_budget"] == 0


def test_next_larger_level_is_over_the_budget(demo: Demo, tmp_path: Path) -> None:
    """Every device below the top trains the next larger level once, on its own data, with no budget to stop it."""
    replace, config = msgspec.structs.replace, demo.config
    unlimited = tuple(replace(group, budget_mb=0.0) for group in config.cohort.local)
    for larger, own in itertools.pairwise(demo.levels):
        forced = replace(
            config,
            method=replace(config.method, options={**config.method.options, "levels": [larger.value]}),
            cohort=replace(config.cohort, local=unlimited),
        )
        measured = {row["device"]: row for row in first_rounds(forced, tmp_path / f"{larger.value:g}")}
        for row in demo.table:
            if row["level"] == own.name:
                peak = measured[row["device"]]["measured_peak_bytes"]
                assert measured[row["device"]]["level"] == larger.name
                assert peak > row["budget_bytes"], (
                    f"{row['device']}: '{larger.name}' measured {peak / MB:.1f} MB, "
                    f"its budget of {row['budget_bytes'] / MB:.1f} MB does not bind"
                )

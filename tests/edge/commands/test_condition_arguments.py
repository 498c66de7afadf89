"""Conditions on the command line: what they become, and what is refused before an agent starts."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from edge.__main__ import main
from edge.commands.condition_arguments import add_condition_arguments, read_conditions
from edge.supervisor.conditions import ALWAYS, Conditions, Surroundings, TimeWindow

PHONE = {
    "sys/class/thermal/thermal_zone0/type": "cpu-0-0",
    "sys/class/thermal/thermal_zone0/temp": "38000",
    "sys/class/power_supply/battery/type": "Battery",
    "sys/class/power_supply/battery/capacity": "71",
    "sys/class/power_supply/battery/status": "Charging",
}
EVERY = [
    *("--train-between", "22:00-06:00", "--max-temperature-c", "70"),
    *("--min-battery-percent", "30", "--only-charging", "--min-free-mb", "64"),
]


@pytest.fixture
def phone(tmp_path: Path) -> Surroundings:
    for path, text in PHONE.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    return Surroundings(tmp_path)


def read(around: Surroundings, *arguments: str) -> tuple[Conditions, list[str]]:
    parser, problems = argparse.ArgumentParser(), ["one before"]
    add_condition_arguments(parser)
    conditions = read_conditions(parser.parse_args(arguments), problems, around)
    assert problems[0] == "one before"
    return conditions, problems[1:]


def test_every_condition_is_read(phone: Surroundings) -> None:
    assert read(phone, *EVERY) == (
        Conditions(
            max_temperature_c=70.0,
            min_battery_percent=30.0,
            only_charging=True,
            min_free_bytes=64 * 2**20,
            window=TimeWindow(22 * 60, 6 * 60),
        ),
        [],
    )


def test_no_condition_is_always_even_where_nothing_can_be_read(tmp_path: Path) -> None:
    assert read(Surroundings(tmp_path)) == (ALWAYS, [])


def test_what_the_device_cannot_read_is_refused_all_at_once(tmp_path: Path) -> None:
    _, problems = read(Surroundings(tmp_path), *EVERY)
    assert [problem.partition(":")[0] for problem in problems] == [
        "--max-temperature-c",
        "--min-battery-percent",
        "--only-charging",
    ]
    assert problems[0] == "--max-temperature-c: no temperature can be read on this device; leave it out"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--max-temperature-c", "-5"], "--max-temperature-c: -5.0 is not within 1 and 150"),
        (["--max-temperature-c", "nan"], "--max-temperature-c: nan is not within 1 and 150"),
        (["--min-battery-percent", "101"], "--min-battery-percent: 101.0 is not within 0 and 100"),
        (["--min-free-mb", "-1"], "--min-free-mb: -1.0 is not within 0"),
        (["--train-between", "at night"], "--train-between: 'at night' is no time of day"),
    ],
)
def test_values_out_of_range_are_refused(phone: Surroundings, arguments: list[str], told: str) -> None:
    _, problems = read(phone, *arguments)
    assert len(problems) == 1
    assert problems[0].startswith(told)


def test_agent_tells_of_wrong_conditions_with_everything_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    good = ["--federation", "fed", "--device", "d", "--data", "x", "--store", str(tmp_path), "--broker", "mqtt://h"]
    assert main(["agent", *good, "--train-between", "25:00-06:00", "--budget-mb", "-1"]) == 2
    error = capsys.readouterr().err
    assert "2 problems" in error
    assert "--train-between: '25:00-06:00' is no time of day" in error

"""The owner's conditions as arguments of ``apportion agent``; one that this device has no reading for is refused."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edge.supervisor.conditions import Conditions, Surroundings

MB = 2**20


def add_condition_arguments(parser: argparse.ArgumentParser) -> None:
    """Heat, battery, charger, memory and the time of day, as a group of their own."""
    add = parser.add_argument_group(
        "train only while", "every condition that is given; else training is paused"
    ).add_argument
    add("--train-between", metavar="HH:MM-HH:MM", help="time of day, by this device's clock, as in 22:00-06:00")
    add("--max-temperature-c", type=float, metavar="C", help="the processor is no hotter")
    add("--min-battery-percent", type=float, metavar="N", help="the battery holds this much")
    add("--only-charging", action="store_true", help="the device is on external power")
    add("--min-free-mb", type=float, default=0.0, metavar="N", help="memory (1 MB = 2^20 bytes) left to other programs")


def read_conditions(
    chosen: argparse.Namespace, problems: list[str], surroundings: Surroundings | None = None
) -> Conditions:
    """The conditions in ``chosen``; adds a line to ``problems`` for everything that is wrong with them.

    Args:
        surroundings: where the readings come from; this machine's if None.
    """
    from edge.supervisor.conditions import HERE, Conditions, unreadable
    from edge.system.time_window import TimeWindow
    from profiles.probe import probe

    ranges = [
        ("max-temperature-c", chosen.max_temperature_c, 1.0, 150.0),
        ("min-battery-percent", chosen.min_battery_percent, 0.0, 100.0),
        ("min-free-mb", chosen.min_free_mb, 0.0, 1e9),
    ]
    wrong = [
        f"--{flag}: {value} is not within {low:.0f} and {high:.0f}"
        for flag, value, low, high in ranges
        if value is not None and not low <= value <= high
    ]
    window = None
    if chosen.train_between is not None:
        try:
            window = TimeWindow.parse(chosen.train_between)
        except ValueError as error:
            wrong.append(f"--train-between: {error}")
    problems += wrong
    if wrong:
        return Conditions()
    conditions = Conditions(
        max_temperature_c=chosen.max_temperature_c,
        min_battery_percent=chosen.min_battery_percent,
        only_charging=chosen.only_charging,
        min_free_bytes=round(chosen.min_free_mb * MB),
        window=window,
    )
    problems += unreadable(conditions, probe("", root=(surroundings or HERE).root))
    return conditions

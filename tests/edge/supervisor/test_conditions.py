"""When a device waits, and meters read from the kernel."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from edge.supervisor.conditions import (
    ALWAYS,
    COOLER_BY_C,
    FULLER_BY_PERCENT,
    Conditions,
    local_minute,
    unmet,
    unreadable,
)
from edge.system.meter import peak_rss_bytes, percentile, rss_bytes
from edge.system.time_window import TimeWindow
from profiles.device import DeviceProfile

PROFILE = DeviceProfile(
    device="d",
    free_ram_bytes=100_000_000,
    storage_free_bytes=10**10,
    temperature_c=60.0,
    battery_percent=50.0,
    charging=False,
)
NOON = 12 * 60


def waits_for(conditions: Conditions, profile: DeviceProfile = PROFILE, **asked: Any) -> str:
    found = unmet(conditions, profile, **{"minute": NOON, **asked})
    return "" if found is None else f"{found.condition}: {found.reason}"


@pytest.mark.parametrize(("needed", "held", "waits"), [(0, 0, False), (90, 0, False), (110, 0, True), (110, 20, False)])
def test_waiting_for_memory_counts_what_is_held_already(needed: int, held: int, waits: bool) -> None:
    told = waits_for(ALWAYS, needed_bytes=needed * 10**6, held_bytes=held * 10**6)
    assert bool(told) == waits
    if waits:
        assert told == "memory: 100 MB of memory are free, the order needs 110 MB more"


def test_waiting_for_memory_that_is_to_stay_free() -> None:
    conditions = Conditions(min_free_bytes=30_000_000)
    assert waits_for(conditions, needed_bytes=70_000_000) == ""
    assert waits_for(conditions, needed_bytes=71_000_000).endswith("71 MB more and 30 MB are to stay free")
    assert waits_for(Conditions(min_free_bytes=100_000_001)).startswith("memory: 100 MB of memory are free")


def test_waiting_for_storage() -> None:
    full = msgspec.structs.replace(PROFILE, storage_free_bytes=10**6)
    assert waits_for(ALWAYS, full) == "storage: 1 MB of storage are free, 34 are needed"


def test_memory_and_storage_are_not_asked_about_while_training() -> None:
    small = msgspec.structs.replace(PROFILE, storage_free_bytes=0, free_ram_bytes=0)
    assert waits_for(Conditions(min_free_bytes=5), small, needed_bytes=10**9, is_training=True) == ""
    assert waits_for(Conditions(max_temperature_c=50), small, is_training=True).startswith("temperature")


@pytest.mark.parametrize(
    ("conditions", "told"),
    [
        (Conditions(max_temperature_c=60), ""),
        (Conditions(max_temperature_c=59), "temperature: the processor has 60.0 C, training goes on at 59 C"),
        (Conditions(min_battery_percent=50), ""),
        (Conditions(min_battery_percent=51), "battery: the battery has 50 %, training goes on at 51 %"),
        (
            Conditions(only_charging=True),
            "charging: the device runs on its battery, training is allowed while charging only",
        ),
        (Conditions(window=TimeWindow.parse("12:00-12:01")), ""),
        (Conditions(window=TimeWindow.parse("12:01-12:00")), "time: it is 12:00, training is allowed 12:01-12:00"),
        (Conditions(max_temperature_c=70, min_battery_percent=20, window=TimeWindow(0, 800)), ""),
        # Of several the first by the order of the page is told.
        (Conditions(max_temperature_c=1, min_battery_percent=99, window=TimeWindow(0, 1)), "time: it is 12:00"),
        (Conditions(max_temperature_c=1, min_battery_percent=99, only_charging=True), "temperature: "),
    ],
)
def test_every_condition_by_its_name_and_values(conditions: Conditions, told: str) -> None:
    found = waits_for(conditions)
    assert found.startswith(told) if told else found == ""


@pytest.mark.parametrize(
    ("conditions", "condition"),
    [
        (Conditions(max_temperature_c=99), "temperature"),
        (Conditions(min_battery_percent=1), "battery"),
        (Conditions(only_charging=True), "charging"),
    ],
)
def test_a_reading_that_cannot_be_taken_leaves_its_condition_unmet(conditions: Conditions, condition: str) -> None:
    blind = DeviceProfile(device="d", free_ram_bytes=10**9, storage_free_bytes=10**9)
    assert waits_for(conditions, blind).startswith(f"{condition}: no ")
    (line,) = unreadable(conditions, blind)
    assert "can be read on this device; leave it out" in line
    assert unreadable(conditions, PROFILE) == []
    assert unreadable(ALWAYS, blind) == []


def test_a_device_that_waited_goes_on_only_below_its_limit() -> None:
    hot = Conditions(max_temperature_c=60 + COOLER_BY_C - 1)
    assert waits_for(hot) == waits_for(hot, before="battery") == ""
    assert waits_for(hot, before="temperature") == "temperature: the processor has 60.0 C, training goes on at 59 C"
    low = Conditions(min_battery_percent=50 - FULLER_BY_PERCENT + 1)
    assert waits_for(low) == ""
    assert waits_for(low, before="battery").startswith("battery: the battery has 50 %, training goes on at 51 %")
    full = msgspec.structs.replace(PROFILE, battery_percent=100.0)
    assert waits_for(Conditions(min_battery_percent=99.5), full, before="battery") == ""


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("09:00-17:00", ["09:00", "12:00", "16:59"], ["08:59", "17:00", "00:00"]),
        ("22:00-06:30", ["22:00", "23:59", "00:00", "06:29"], ["06:30", "12:00", "21:59"]),
        ("00:00-23:59", ["00:00", "23:58"], ["23:59"]),
    ],
)
def test_time_window_may_pass_midnight(text: str, inside: list[str], outside: list[str]) -> None:
    window = TimeWindow.parse(text)
    assert str(window) == text
    minutes = {told: int(told[:2]) * 60 + int(told[3:]) for told in inside + outside}
    assert [told for told, minute in minutes.items() if window.holds(minute)] == inside


@pytest.mark.parametrize(
    "text", ["", "22-6", "24:00-06:00", "9:00-17:00", "09:00-17:60", "09:00-17:00 ", "08:00-08:00"]
)
def test_time_window_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=repr(text)):
        TimeWindow.parse(text)


def test_local_minute_is_a_minute_of_the_day() -> None:
    assert 0 <= local_minute() < 24 * 60


def test_meter_sees_memory_that_is_touched() -> None:
    before, block = peak_rss_bytes(), np.ones(80_000_000, np.uint8)
    assert peak_rss_bytes() >= rss_bytes() > 80_000_000
    assert peak_rss_bytes() >= before
    assert block[0] == 1


def test_percentile_is_the_nearest_rank() -> None:
    values = [float(v) for v in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.95)) == (50.0, 95.0)
    assert percentile([7.0], 0.95) == 7.0
    assert percentile([], 0.5) == 0.0

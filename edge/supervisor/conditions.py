"""Whether a device may train now: what its owner set, held against what the device reads of itself. Pure functions.

A reading that a condition needs and that cannot be taken leaves the condition unmet: an owner who set a limit has not
said that it may be guessed. :func:`unreadable` tells so before an agent starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edge.system.time_window import TimeWindow
from profiles.device import DeviceProfile

STORAGE_FLOOR_BYTES = 32 << 20

COOLER_BY_C = 3.0
"""A device that waits because it is hot goes on this far below its limit, or it would stop again at once."""

FULLER_BY_PERCENT = 2.0
"""As with the heat, for the battery's charge."""


Condition = Literal["memory", "storage", "temperature", "battery", "charging", "time"]
"""What a device can wait for, by the names that it reports."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """When the owner lets the device train; every one that is set has to be met.

    Attributes:
        max_temperature_c: of the processor.
        min_battery_percent: charge of the battery, charging or not.
        only_charging: on external power only.
        min_free_bytes: memory left to others, beyond what training takes.
        window: time of day, by the device's own clock and zone.
    """

    max_temperature_c: float | None = None
    min_battery_percent: float | None = None
    only_charging: bool = False
    min_free_bytes: int = 0
    window: TimeWindow | None = None


@dataclass(frozen=True)
class Unmet:
    """What a device waits for: the condition's name, and a sentence with the values."""

    condition: Condition
    reason: str


def local_minute() -> int:
    """Minutes since midnight on this device's clock."""
    now = time.localtime()
    return now.tm_hour * 60 + now.tm_min


@dataclass(frozen=True)
class Surroundings:
    """What is around an agent: where the system's files are, and the clock on the wall."""

    root: Path = Path("/")
    minute_of_day: Callable[[], int] = local_minute


ALWAYS = Conditions()
"""No conditions but memory and storage."""

HERE = Surroundings()
"""This machine and its clock."""


def unmet(
    conditions: Conditions,
    profile: DeviceProfile,
    *,
    minute: int,
    needed_bytes: int = 0,
    held_bytes: int = 0,
    is_training: bool = False,
    before: Condition | None = None,
) -> Unmet | None:
    """The first condition that keeps the device from training, None when it may.

    Args:
        profile: probed just now.
        minute: of the day.
        needed_bytes: what supervisor and trainer will reach; 0 when unknown.
        held_bytes: what they hold already.
        is_training: memory and storage are taken already, and are not asked about.
        before: what it waited for until now; that one has to be better than its limit by a margin.
    """
    found = (
        _time(conditions, minute)
        or _temperature(conditions, profile, COOLER_BY_C if before == "temperature" else 0.0)
        or _charging(conditions, profile)
        or _battery(conditions, profile, FULLER_BY_PERCENT if before == "battery" else 0.0)
    )
    if found is not None or is_training:
        return found
    return _memory(conditions, profile, needed_bytes, held_bytes) or _storage(profile)


def unreadable(conditions: Conditions, profile: DeviceProfile) -> list[str]:
    """Conditions that this device has no reading for, a line for each."""
    readings = [
        ("max-temperature-c", conditions.max_temperature_c is not None, profile.temperature_c, "temperature"),
        ("min-battery-percent", conditions.min_battery_percent is not None, profile.battery_percent, "battery"),
        ("only-charging", conditions.only_charging, profile.charging, "battery or charger"),
    ]
    return [
        f"--{flag}: no {what} can be read on this device; leave it out"
        for flag, is_set, value, what in readings
        if is_set and value is None
    ]


def _time(conditions: Conditions, minute: int) -> Unmet | None:
    window = conditions.window
    if window is None or window.holds(minute):
        return None
    return Unmet("time", f"it is {minute // 60:02d}:{minute % 60:02d}, training is allowed {window}")


def _temperature(conditions: Conditions, profile: DeviceProfile, margin: float) -> Unmet | None:
    limit, found = conditions.max_temperature_c, profile.temperature_c
    if limit is None:
        return None
    if found is None:
        return Unmet("temperature", f"no temperature can be read, at most {limit:.0f} C are allowed")
    if found <= limit - margin:
        return None
    return Unmet("temperature", f"the processor has {found:.1f} C, training goes on at {limit - margin:.0f} C")


def _charging(conditions: Conditions, profile: DeviceProfile) -> Unmet | None:
    if not conditions.only_charging or profile.charging:
        return None
    if profile.charging is None:
        return Unmet("charging", "no charger can be read, training is allowed while charging only")
    return Unmet("charging", "the device runs on its battery, training is allowed while charging only")


def _battery(conditions: Conditions, profile: DeviceProfile, margin: float) -> Unmet | None:
    limit, found = conditions.min_battery_percent, profile.battery_percent
    if limit is None:
        return None
    if found is None:
        return Unmet("battery", f"no battery can be read, at least {limit:.0f} % are asked for")
    if found >= min(100.0, limit + margin):
        return None
    return Unmet("battery", f"the battery has {found:.0f} %, training goes on at {min(100.0, limit + margin):.0f} %")


def _memory(conditions: Conditions, profile: DeviceProfile, needed_bytes: int, held_bytes: int) -> Unmet | None:
    more, left = max(0, needed_bytes - held_bytes), conditions.min_free_bytes
    if (not needed_bytes and not left) or profile.free_ram_bytes >= more + left:
        return None
    kept = f" and {left / 1e6:.0f} MB are to stay free" if left else ""
    free = f"{profile.free_ram_bytes / 1e6:.0f} MB of memory are free"
    return Unmet("memory", f"{free}, the order needs {more / 1e6:.0f} MB more{kept}")


def _storage(profile: DeviceProfile) -> Unmet | None:
    if profile.storage_free_bytes >= STORAGE_FLOOR_BYTES:
        return None
    free, floor = profile.storage_free_bytes / 1e6, STORAGE_FLOOR_BYTES / 1e6
    return Unmet("storage", f"{free:.0f} MB of storage are free, {floor:.0f} are needed")

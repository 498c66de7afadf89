"""Heat, throttling and power as the kernel tells them. On a phone most of it is closed to an application: None then.

``throttling`` holds any of: ``under-voltage``, ``frequency-capped``, ``throttled``, ``soft-temperature-limit`` (a
Raspberry Pi's firmware says so, now, not since it was started) and ``cooling`` (the kernel slows processors down
because of heat). A fan that turns is none of them.
"""

from __future__ import annotations

from profiles.system_files import Reading, SystemFiles

_FIRMWARE_BITS = ("under-voltage", "frequency-capped", "throttled", "soft-temperature-limit")
_CPU_ZONES = ("cpu", "soc", "x86_pkg", "tsens")
_CPU_CHIPS = ("cpu_thermal", "coretemp", "k10temp", "zenpower", "soc_thermal")
_COOLED = ("cpufreq", "Processor")
_POWERED = ("Mains", "USB", "Wireless")


def sensors(files: SystemFiles) -> dict[str, Reading]:
    """``temperature_c``, ``throttling``, ``battery_percent`` and ``charging``, those that can be read."""
    found: dict[str, Reading] = {}
    heat = _temperature(files)
    if heat is not None:
        found["temperature_c"] = heat
    found.update(_throttling(files))
    found.update(_power(files))
    return found


def _temperature(files: SystemFiles) -> Reading | None:
    """Degrees Celsius of the processor's hottest sensor, of any sensor where none is named for it."""
    zones = [
        (files.line(f"{zone}/type"), _degrees(files.number(f"{zone}/temp")), f"{zone}/temp")
        for zone in files.matching("/sys/class/thermal/thermal_zone*")
    ]
    chips = [
        (files.line(path.rpartition("/")[0] + "/name"), _degrees(files.number(path)), path)
        for path in files.matching("/sys/class/hwmon/hwmon*/temp*_input")
    ]
    readings = [(name, value, path) for name, value, path in [*zones, *chips] if value is not None]
    own = [r for r in readings if r[0].lower().startswith(_CPU_ZONES) or r[0] in _CPU_CHIPS]
    if not readings:
        return None
    _, value, path = max(own or readings, key=lambda reading: reading[1])
    return Reading(value, path)


def _degrees(value: int | None) -> float | None:
    """The kernel gives thousandths; phones' kernels may give degrees. What no device survives is a broken sensor."""
    if value is None:
        return None
    degrees = float(value) if 0 < value < 200 else value / 1000
    return degrees if -40.0 < degrees < 150.0 and value != 0 else None


def _throttling(files: SystemFiles) -> dict[str, Reading]:
    """What slows the processor down now; several kernels and boards tell it in several places."""
    reasons: list[str] = []
    sources: list[str] = []
    for path in files.matching("/sys/devices/platform/soc*/soc*firmware/get_throttled"):
        try:
            bits = int(files.line(path), 16)
        except ValueError:
            continue
        reasons += [name for bit, name in enumerate(_FIRMWARE_BITS) if bits >> bit & 1]
        sources.append(path)
    for path in files.matching("/sys/class/hwmon/hwmon*/in0_lcrit_alarm"):
        alarm = files.number(path)
        if alarm is not None and files.line(path.rpartition("/")[0] + "/name") == "rpi_volt":
            reasons += ["under-voltage"] if alarm else []
            sources.append(path)
    for device in files.matching("/sys/class/thermal/cooling_device*"):
        step = files.number(f"{device}/cur_state")
        if step is not None and any(name in files.line(f"{device}/type") for name in _COOLED):
            reasons += ["cooling"] if step > 0 else []
            sources.append(f"{device}/cur_state")
    if not sources:
        return {}
    return {"throttling": Reading(tuple(dict.fromkeys(reasons)), ", ".join(sources[:3]))}


def _power(files: SystemFiles) -> dict[str, Reading]:
    """The machine's own battery; those of mice and keyboards say ``Device`` as their scope."""
    found: dict[str, Reading] = {}
    supplies = [
        (path, files.line(f"{path}/type"))
        for path in files.matching("/sys/class/power_supply/*")
        if files.line(f"{path}/scope") != "Device"
    ]
    online = [files.number(f"{path}/online") for path, kind in supplies if kind.startswith(_POWERED)]
    is_powered = any(online) if any(value is not None for value in online) else None
    for path, kind in supplies:
        percent = files.number(f"{path}/capacity")
        if kind != "Battery":
            continue
        if percent is not None and 0 <= percent <= 110:  # a few gauges run over when full
            found["battery_percent"] = Reading(min(100.0, float(percent)), f"{path}/capacity")
        told = {"Charging": True, "Full": True, "Discharging": False}.get(files.line(f"{path}/status"), is_powered)
        if told is not None:
            found["charging"] = Reading(told, f"{path}/status")
        return found
    if is_powered is not None:
        found["charging"] = Reading(is_powered, "/sys/class/power_supply")
    return found

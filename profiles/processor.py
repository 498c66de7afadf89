"""Which processors a machine has, by kind, and how fast they run."""

from __future__ import annotations

import os
from collections import Counter

from profiles.device import CoreGroup
from profiles.system_files import Reading, SystemFiles

PARTS: dict[tuple[int, int], str] = {
    **{
        (0x41, part): f"Cortex-{name}"
        for part, name in {
            0xD03: "A53",
            0xD04: "A35",
            0xD05: "A55",
            0xD07: "A57",
            0xD08: "A72",
            0xD09: "A73",
            0xD0A: "A75",
            0xD0B: "A76",
            0xD0D: "A77",
            0xD41: "A78",
            0xD44: "X1",
            0xD46: "A510",
            0xD47: "A710",
            0xD48: "X2",
            0xD4D: "A715",
            0xD4E: "X3",
            0xD80: "A520",
            0xD81: "A720",
            0xD82: "X4",
        }.items()
    },
    (0x51, 0x802): "Kryo 3xx Gold",
    (0x51, 0x803): "Kryo 3xx Silver",
    (0x51, 0x804): "Kryo 4xx Gold",
    (0x51, 0x805): "Kryo 4xx Silver",
}
"""(implementer, part) of the main ID register -> name. Source: Arm's technical reference manuals, util-linux lscpu."""

_CPUINFO = "/proc/cpuinfo"


def processor(files: SystemFiles) -> dict[str, Reading]:
    """``cpu_count``, ``cpu_model``, ``cores``, ``cpu_mhz`` and ``cpu_max_mhz``, those that can be read."""
    listed = _listed(files)
    found: dict[str, Reading] = {}
    if files.is_this_machine and hasattr(os, "sched_getaffinity"):
        found["cpu_count"] = Reading(len(os.sched_getaffinity(0)), "sched_getaffinity")
    elif listed:
        found["cpu_count"] = Reading(len(listed), _CPUINFO)
    kinds = Counter((name, _mhz(files, number, "cpuinfo_max_freq")) for number, name in listed.items())
    groups = [CoreGroup(name=name, count=count, max_mhz=mhz) for (name, mhz), count in kinds.items()]
    groups.sort(key=lambda group: (-(group.max_mhz or 0.0), group.name))
    if groups:
        found["cores"] = Reading(tuple(groups), f"{_CPUINFO}, cpufreq/cpuinfo_max_freq")
        if groups[0].name:
            found["cpu_model"] = Reading(groups[0].name, _CPUINFO)
        if groups[0].max_mhz is not None:
            found["cpu_max_mhz"] = Reading(groups[0].max_mhz, "cpufreq/cpuinfo_max_freq")
    now = [mhz for number in listed if (mhz := _mhz(files, number, "scaling_cur_freq")) is not None]
    if now:
        found["cpu_mhz"] = Reading(max(now), "cpufreq/scaling_cur_freq")
    elif (mhz := _float(files.fields(_CPUINFO).get("cpu MHz", ""))) is not None:
        found["cpu_mhz"] = Reading(mhz, f"{_CPUINFO} cpu MHz")
    return found


def _listed(files: SystemFiles) -> dict[int, str]:
    """Processor number -> its name, of every processor in the list; empty names where it does not say."""
    found: dict[int, str] = {}
    number, codes = -1, {"CPU implementer": -1, "CPU part": -1}
    for line in files.text(_CPUINFO).splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "processor" and value.isdecimal() and len(value) < 6:
            number, codes = int(value), dict.fromkeys(codes, -1)
            found[number] = ""
        elif number < 0:
            continue
        elif key == "model name":  # x86, and 32-bit Arm: overwritten below by what the codes say
            found[number] = value
        elif key in codes:
            codes[key] = _hexadecimal(value)
            found[number] = PARTS.get((codes["CPU implementer"], codes["CPU part"]), found[number])
    return found


def _mhz(files: SystemFiles, number: int, name: str) -> float | None:
    kilohertz = files.number(f"/sys/devices/system/cpu/cpu{number}/cpufreq/{name}")
    return kilohertz / 1000 if kilohertz is not None and kilohertz > 0 else None


def _hexadecimal(value: str) -> int:
    try:
        return int(value, 16)
    except ValueError:
        return -1


def _float(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if 0 < number < 1e6 else None

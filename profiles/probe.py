"""Reads what this machine is, without privileges and without changing it. Absent sensors give None."""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

from profiles.device import DeviceProfile

_MODEL_FILES = (Path("/proc/device-tree/model"), Path("/sys/devices/virtual/dmi/id/product_name"))
_CPU_SENSORS = ("cpu_thermal", "cpu-thermal", "coretemp", "k10temp", "soc_thermal")


def probe(
    device: str,
    *,
    budget_bytes: int = 0,
    storage: Path = Path("/"),
    supervisor_idle_bytes: int = 0,
    trainer_idle_bytes: dict[str, int] | None = None,
    max_threads: dict[str, int] | None = None,
    sparse_below: dict[str, dict[str, float]] | None = None,
) -> DeviceProfile:
    """The profile of this machine now; what only its owner or its agent knows is passed in."""
    memory, system = psutil.virtual_memory(), os.uname()
    battery = _battery()
    return DeviceProfile(
        device=device,
        budget_bytes=budget_bytes,
        ram_bytes=memory.total,
        free_ram_bytes=memory.available,
        cpu_count=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        cpu_model=cpu_model(),
        machine=system.machine,
        system=f"{system.sysname} {system.release}",
        storage_free_bytes=psutil.disk_usage(str(storage)).free,
        temperature_c=temperature_c(),
        battery_percent=None if battery is None else battery[0],
        charging=None if battery is None else battery[1],
        supervisor_idle_bytes=supervisor_idle_bytes,
        trainer_idle_bytes=trainer_idle_bytes or {},
        max_threads=max_threads or {},
        sparse_below=sparse_below or {},
        probed_at=time.time(),
    )


def cpu_model() -> str:
    """The board's model on ARM (``Raspberry Pi 5 Model B Rev 1.0``), else the CPU's name, else an empty string."""
    board = _first_line(_MODEL_FILES[0])
    if board:
        return board
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith(("model name", "Model", "Hardware")):
                    return line.partition(":")[2].strip()
    except OSError:
        return ""
    return _first_line(_MODEL_FILES[1])


def temperature_c() -> float | None:
    """Degrees Celsius of the CPU's hottest sensor, None without one."""
    read = getattr(psutil, "sensors_temperatures", None)
    sensors = read() if read is not None else {}
    named = [reading for name in _CPU_SENSORS for reading in sensors.get(name, [])]
    readings = named or [reading for group in sensors.values() for reading in group]
    return max((float(reading.current) for reading in readings), default=None)


def _battery() -> tuple[float, bool | None] | None:
    read = getattr(psutil, "sensors_battery", None)
    battery = read() if read is not None else None
    return None if battery is None else (float(battery.percent), battery.power_plugged)


def _first_line(path: Path) -> str:
    try:
        return path.read_bytes().split(b"\0")[0].split(b"\n")[0].decode("utf-8", "replace").strip()
    except OSError:
        return ""

"""Reads what a machine is, without privileges and without changing it. What cannot be read is left unknown.

Plain reads of files below a root folder, and a few calls about this process when that root is ``/``: a supervisor
needs no library for it, and another machine's files can be probed as well. Nothing here raises for an odd file.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from profiles.device import DeviceProfile
from profiles.processor import processor
from profiles.sensors import sensors
from profiles.system_files import Reading, SystemFiles
from profiles.system_memory import memory

_BOARD_FILES = (
    "/proc/device-tree/model",
    "/sys/firmware/devicetree/base/model",
    "/sys/devices/virtual/dmi/id/product_name",
)
ROOT = Path("/")


def probe(
    device: str,
    *,
    budget_bytes: int = 0,
    storage: Path = ROOT,
    supervisor_idle_bytes: int = 0,
    trainer_idle_bytes: dict[str, int] | None = None,
    max_threads: dict[str, int] | None = None,
    sparse_below: dict[str, dict[str, float]] | None = None,
    runtimes: dict[str, str] | None = None,
    root: Path = ROOT,
) -> DeviceProfile:
    """The profile of a machine now; what only its owner or its agent knows is passed in.

    Args:
        storage: any path of the file system that holds the agent's store.
        runtimes: runtime name -> version, of those the agent can start.
        root: where the machine's ``/proc``, ``/sys`` and ``/etc`` are.
    """
    files = SystemFiles(root)
    found = {**memory(files), **processor(files), **sensors(files), **_system(files), **_storage(storage)}
    return DeviceProfile(
        device=device,
        budget_bytes=budget_bytes,
        supervisor_idle_bytes=supervisor_idle_bytes,
        trainer_idle_bytes=trainer_idle_bytes or {},
        max_threads=max_threads or {},
        sparse_below=sparse_below or {},
        runtimes=runtimes or {},
        probed_at=time.time(),
        sources={name: reading.source for name, reading in found.items()},
        **{name: reading.value for name, reading in found.items()},
    )


def heat_and_charge(root: Path = ROOT) -> tuple[float | None, float | None]:
    """Degrees Celsius of the processor's hottest sensor and percent of the battery, None where there is none."""
    found = sensors(SystemFiles(root))
    heat, charge = found.get("temperature_c"), found.get("battery_percent")
    return None if heat is None else float(heat.value), None if charge is None else float(charge.value)


def _system(files: SystemFiles) -> dict[str, Reading]:
    found: dict[str, Reading] = {}
    for path in _BOARD_FILES:
        if board := files.line(path):
            found["board"] = Reading(board, path)
            break
    if name := files.fields("/etc/os-release", "=").get("PRETTY_NAME"):
        found["os_name"] = Reading(name, "/etc/os-release")
    elif release := files.fields("/system/build.prop", "=").get("ro.build.version.release"):
        found["os_name"] = Reading(f"Android {release}", "/system/build.prop")
    if files.is_this_machine:
        told = os.uname()
        found["machine"] = Reading(told.machine, "uname")
        found["system"] = Reading(f"{told.sysname} {told.release}", "uname")
        found["python"] = Reading(sys.version.split()[0], "sys.version")
    else:
        if machine := files.line("/proc/sys/kernel/arch"):
            found["machine"] = Reading(machine, "/proc/sys/kernel/arch")
        if release := files.line("/proc/sys/kernel/osrelease"):
            kind = files.line("/proc/sys/kernel/ostype") or "Linux"
            found["system"] = Reading(f"{kind} {release}", "/proc/sys/kernel/osrelease")
    return found


def _storage(path: Path) -> dict[str, Reading]:
    try:
        told = os.statvfs(path)
    except OSError:
        return {}
    return {
        "storage_free_bytes": Reading(told.f_bavail * told.f_frsize, "statvfs"),
        "storage_total_bytes": Reading(told.f_blocks * told.f_frsize, "statvfs"),
    }

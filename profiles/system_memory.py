"""Memory of the machine and the limits that control groups put on this process.

Swap is not counted: it is no place to train.
"""

from __future__ import annotations

from profiles.system_files import Reading, SystemFiles

_NO_LIMIT = 1 << 60
"""Version 1 writes an unset limit as the largest multiple of a page."""


def memory(files: SystemFiles) -> dict[str, Reading]:
    """``ram_bytes``, ``free_ram_bytes`` and ``memory_limit_bytes``, those that can be read."""
    found: dict[str, Reading] = {}
    fields = files.fields("/proc/meminfo")
    total, free = _kilobytes(fields, "MemTotal"), _kilobytes(fields, "MemAvailable")
    if total is not None:
        found["ram_bytes"] = Reading(total, "/proc/meminfo MemTotal")
    if free is not None:
        found["free_ram_bytes"] = Reading(free, "/proc/meminfo MemAvailable")
    elif total is not None:  # kernels before 3.14 (old phones)
        parts = [_kilobytes(fields, name) or 0 for name in ("MemFree", "Buffers", "Cached")]
        found["free_ram_bytes"] = Reading(sum(parts), "/proc/meminfo MemFree + Buffers + Cached")
    limits = [(value, path) for path in _limit_files(files) if (value := files.number(path)) and value < _NO_LIMIT]
    if limits:
        found["memory_limit_bytes"] = Reading(*min(limits))
    return found


def _kilobytes(fields: dict[str, str], name: str) -> int | None:
    number, _, unit = fields.get(name, "").partition(" ")
    return int(number) * 1024 if number.isdecimal() and len(number) < 16 and unit.strip() in ("kB", "") else None


def _limit_files(files: SystemFiles) -> list[str]:
    """The limit files of this process's control group and of every one above it."""
    found: list[str] = []
    for line in files.text("/proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, controllers, group = parts
        if not controllers:
            base, name = "/sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        steps = [step for step in group.split("/") if step not in ("", "..")]
        found += ["/".join([base, *steps[:depth], name]) for depth in range(len(steps), -1, -1)]
    return found

"""Runs one measuring process under a memory limit and watches it: its peak, the memory left, heat and throttling.

The limit is kept three ways, so that a large step ends this child and nothing else: the watch ends it when its peak is
above the limit or the machine runs short of memory; the kernel refuses it more than the limit and some slack
(``RLIMIT_DATA``, which the child sets itself); and where memory ends all the same, the kernel is asked to take the
child first (``oom_score_adj``). No privileges are needed.
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from profiles.sensors import sensors
from profiles.system_files import SystemFiles
from profiles.system_memory import memory

POLL_S = 0.02
HEAT_EVERY_S = 0.5
DATA_SLACK_BYTES = 64 << 20
"""Private mappings that are no resident memory yet: stacks of threads, what an allocator holds ready."""

LEAST_FREE_SHARE, LEAST_FREE_BYTES = 0.03, 48 << 20
"""The watch keeps this share of the machine's memory available, and no more than so many bytes: swap is no result."""

_OUT_OF_MEMORY = ("bad_alloc", "MemoryError", "bad allocation", "ailed to allocate", "annot allocate", "out of memory")


@dataclass(frozen=True)
class Watched:
    """How a child ended.

    Attributes:
        status: as Popen's returncode.
        stopped: why the watch ended it; empty when it did not.
        peak_bytes: the largest resident set that was seen.
        heat: (seconds on a monotonic clock, degrees Celsius), empty without a sensor.
        throttling: what slowed the processor at any moment; None where it cannot be told.
    """

    status: int
    stdout: str
    stderr: str
    stopped: str
    peak_bytes: int
    heat: tuple[tuple[float, float], ...]
    throttling: tuple[str, ...] | None

    @property
    def is_out_of_memory(self) -> bool:
        """Whether an allocation was refused, which the limit on private memory does."""
        return self.status != 0 and any(text in self.stderr for text in _OUT_OF_MEMORY)


def watch(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    limit_bytes: int = 0,
    timeout_s: float,
    files: SystemFiles | None = None,
) -> Watched:
    """Run ``command`` to its end, or to the moment at which it has to be ended.

    Args:
        limit_bytes: of resident memory; 0: none but the machine's.
        files: the machine's ``/proc`` and ``/sys``.

    Raises:
        OSError: it cannot be started.
    """
    files = files or SystemFiles()
    least_free = _least_free(files)
    end_at = time.monotonic() + timeout_s
    heat: list[tuple[float, float]] = []
    slowed: set[str] | None = None
    peak, stopped, sensed_at = 0, "", 0.0
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=dict(env))
        try:
            while (status := child.poll()) is None:
                now = time.monotonic()
                peak = max(peak, _peak_bytes(child.pid))
                stopped = _reason(peak, limit_bytes, now >= end_at, timeout_s, files, least_free)
                if stopped:
                    child.kill()
                    status = child.wait()
                    break
                if now >= sensed_at + HEAT_EVERY_S:
                    sensed_at = now
                    slowed = _sense(files, now, heat, slowed)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(POLL_S)
        except BaseException:
            child.kill()
            child.wait()
            raise
        slowed = _sense(files, time.monotonic(), heat, slowed)
        said, complained = _text(out), _text(errors)
    reasons = None if slowed is None else tuple(sorted(slowed))
    return Watched(status, said, complained, stopped, peak, tuple(heat), reasons)


def accept_limit(limit_bytes: int) -> None:
    """In the child, before it loads anything: be refused more than the limit, and be the kernel's first choice."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if limit_bytes:
        wanted, (_, most) = limit_bytes + DATA_SLACK_BYTES, resource.getrlimit(resource.RLIMIT_DATA)
        if most == resource.RLIM_INFINITY or wanted < most:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))


def available_bytes(files: SystemFiles | None = None, held_bytes: int = 0) -> int:
    """What a child may reach before the machine, or the control group, runs short; 0 where it cannot be told.

    Args:
        held_bytes: what this process holds itself of its group's limit.
    """
    files = files or SystemFiles()
    found = memory(files)
    free = found["free_ram_bytes"].value - _least_free(files) if "free_ram_bytes" in found else 0
    limit = found["memory_limit_bytes"].value - held_bytes if "memory_limit_bytes" in found else 0
    return max(0, min(filter(None, (free, limit)), default=0))


def _least_free(files: SystemFiles) -> int:
    total = memory(files).get("ram_bytes")
    return 0 if total is None else min(LEAST_FREE_BYTES, int(LEAST_FREE_SHARE * total.value))


def _reason(peak: int, limit: int, is_late: bool, timeout_s: float, files: SystemFiles, least_free: int) -> str:
    if limit and peak > limit:
        return f"killed at its limit of {limit / 2**20:.0f} MB"
    if is_late:
        return f"not done within {timeout_s:.0f} s"
    free = files.fields("/proc/meminfo").get("MemAvailable", "").partition(" ")[0] if least_free else ""
    if free.isdecimal() and int(free) * 1024 < least_free:
        return f"killed because the machine had {int(free) // 1024} MB left, at {peak / 2**20:.0f} MB"
    return ""


def _peak_bytes(pid: int) -> int:
    try:
        with Path(f"/proc/{pid}/status").open("rb") as status:
            for line in status:
                if line.startswith(b"VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0


def _sense(files: SystemFiles, now: float, heat: list[tuple[float, float]], slowed: set[str] | None) -> set[str] | None:
    found = sensors(files)
    if "temperature_c" in found:
        heat.append((now, float(found["temperature_c"].value)))
    return slowed if "throttling" not in found else (slowed or set()) | set(found["throttling"].value)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")

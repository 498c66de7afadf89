"""Processes below this one: their parts in a federation, memory and processor seconds."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
SERVER, CLIENT = "server", "client"


@dataclass(frozen=True)
class Process:
    """What ``/proc`` says of a process.

    Attributes:
        cpu_s: of the process and of its children that ended.
    """

    pid: int
    parent: int
    command: str
    cpu_s: float


@dataclass(frozen=True)
class Memory:
    """Sums over processes, in MB of 2^20 bytes.

    Attributes:
        pss: memory that processes share counts once among them.
        rss: it counts in each.
    """

    pss: float = 0.0
    rss: float = 0.0

    def most(self, other: Memory) -> Memory:
        """The larger of each."""
        return Memory(max(self.pss, other.pss), max(self.rss, other.rss))


def cpu_seconds(stat: str) -> float:
    """Of a process and its children that ended, by its ``/proc/PID/stat``."""
    return sum(int(ticks) for ticks in stat.rpartition(")")[2].split()[11:15]) / TICKS


def below(root: int) -> dict[int, Process]:
    """Every process below ``root``, without it."""
    every: dict[int, Process] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        pid = int(entry.name)
        every[pid] = Process(pid, int(stat.rpartition(")")[2].split()[1]), command, cpu_seconds(stat))
    found, last = set[int](), {root}
    while last:
        last = {pid for pid, process in every.items() if process.parent in last} - found
        found |= last
    return {pid: every[pid] for pid in found}


def with_roles(processes: Mapping[int, Process], role_of: Callable[[str], str]) -> dict[int, str]:
    """Process id -> its part: by its own command, else that of the nearest process above it; '' for none."""

    def role(pid: int) -> str:
        process = processes.get(pid)
        return "" if process is None else role_of(process.command) or role(process.parent)

    return {pid: role(pid) for pid in processes}


def marked(processes: Mapping[int, Process], mark: str) -> list[int]:
    """Processes whose command, or that of one above them, has ``mark``."""

    def is_marked(pid: int) -> bool:
        process = processes.get(pid)
        return process is not None and (mark in process.command or is_marked(process.parent))

    return [pid for pid in processes if is_marked(pid)]


def memory(pids: Iterable[int]) -> Memory:
    """Of all of them together, now."""
    pss = rss = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("Pss:"):
                pss += int(line.split()[1])
            elif line.startswith("Rss:"):
                rss += int(line.split()[1])
    return Memory(pss / 1024, rss / 1024)


def kill(pids: Iterable[int]) -> None:
    """End processes at once, as a loss of power would."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def collect_ended() -> float:
    """Processor seconds of children that ended and were waited for by nobody else."""
    seconds = 0.0
    while True:
        try:
            pid, _, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return seconds
        if not pid:
            return seconds
        seconds += usage.ru_utime + usage.ru_stime

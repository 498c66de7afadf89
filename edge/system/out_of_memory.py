"""Whether memory was the reason: of an error, and of a process that is dead.

A kernel that kills for a control group's limit counts it, before the process is gone. An allocation that fails below
another limit is an error in the process, or an abort where native code does not expect one.
"""

from __future__ import annotations

import signal
from pathlib import Path

from profiles.system_files import SystemFiles

CODE = "out-of-memory"

_WORDS = ("bad_alloc", "memoryerror", "bad allocation", "failed to allocate", "cannot allocate", "out of memory")
_SHARE = 0.9
"""Of a limit; what was killed at that size or above was killed for it. A peak is read before the last page."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that memory could not be had."""
    told = f"{type(error).__name__}: {error}".lower()
    return any(word in told for word in _WORDS)


class MemoryKills:
    """How often the kernel killed a process of this one's control group for its memory.

    Args:
        root: where ``proc`` and ``sys`` are.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = SystemFiles(root)
        self._path = next((p for p in _event_files(self._files) if "oom_kill" in self._files.fields(p, " ")), "")
        self.seen = self.count()

    def count(self) -> int:
        """Kills so far; 0 where nothing counts them."""
        told = self._files.fields(self._path, " ").get("oom_kill", "0") if self._path else "0"
        return int(told) if told.isdecimal() and len(told) < 12 else 0

    def happened(self) -> bool:
        """Whether one was killed since this was last asked."""
        before, self.seen = self.seen, self.count()
        return self.seen > before


def died_of_memory(number: int, *, is_counted: bool, used_bytes: int, limit_bytes: int, data_limit_bytes: int) -> bool:
    """Whether a process ended for its memory.

    Args:
        number: the signal that ended it; 0 when it ended by itself.
        is_counted: the kernel counted a kill meanwhile.
        used_bytes: what both processes had at its peak.
        limit_bytes: of the control group, or of the machine; 0 = none known.
        data_limit_bytes: of each process (``ulimit -d``, ``ulimit -v``); 0 = none.
    """
    if number == signal.SIGKILL:
        return is_counted or 0 < _SHARE * limit_bytes <= used_bytes
    # Below a limit on data nothing is killed: allocations fail, and mapped files count to a peak that are no data.
    return number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS) and 0 < 0.7 * data_limit_bytes <= used_bytes


def _event_files(files: SystemFiles) -> list[str]:
    """Where this process's control group counts kills, version 2 and version 1."""
    found = []
    for line in files.text("/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        group = "" if group == "/" or ".." in group else group
        if not controllers:
            found += [f"/sys/fs/cgroup{group}/memory.events", f"/sys/fs/cgroup/unified{group}/memory.events"]
        elif "memory" in controllers.split(","):
            found.append(f"/sys/fs/cgroup/memory{group}/memory.oom_control")
    return found

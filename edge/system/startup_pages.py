"""Gives memory back that only starting up needed: pages of code and constants that came from files unchanged.

Loading a runtime and a graph touches tens of megabytes of library pages (operator registration, graph optimisation)
that no training step reads again. They count as resident until the kernel is short of memory; telling it at once that
they may go lowers the peak of a training process by about 25 MB (measured: ResNet-20, batch 32, x86-64, 137 to 111).
Whatever is needed again is mapped again from the page cache.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

SUPERVISOR_MODULES = ("hashlib", "ssl", "edge.transport.mqtt", "edge.agent", "edge.commands.agent")
"""What an agent's supervisor imports, its largest libraries first and one by one."""

SIGNATURE_MODULES = (
    "cryptography.hazmat.bindings._rust",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "cryptography.hazmat.primitives.serialization",
)
"""What a supervisor with --trust needs, imported before those: 22.9 MB at its peak, not 27.8 (measured, x86-64)."""

_MADV_DONTNEED = 4
_HEAD = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ (\d+)")
_CHANGED = ("Private_Dirty:", "Shared_Dirty:", "Anonymous:", "Swap:")


@dataclass
class _Mapping:
    start: int
    end: int
    permissions: str
    inode: int
    resident_kb: int = 0
    changed_kb: int = 0

    @property
    def is_unchanged_file(self) -> bool:
        """Resident, backed by a file, not writable, and no page of it differs from the file (relocated data does)."""
        return self.resident_kb > 0 and self.inode > 0 and "w" not in self.permissions and self.changed_kb == 0


def release_startup_pages() -> int:
    """Bytes of resident, unchanged file pages given back; 0 where the system does not allow it."""
    if sys.platform != "linux":
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    try:
        with Path("/proc/self/smaps").open(encoding="utf-8", errors="replace") as lines:
            unchanged = [m for m in _mappings(lines) if m.is_unchanged_file]
    except OSError:  # hidden by a container
        return 0
    released = 0
    for mapping in unchanged:
        # A read-only private mapping without changed pages reads the same from its file afterwards.
        if madvise(mapping.start, mapping.end - mapping.start, _MADV_DONTNEED) == 0:
            released += mapping.resident_kb * 1024
    return released


def supervisor_modules(arguments: Sequence[str]) -> tuple[str, ...]:
    """What to import in stages for ``apportion agent`` with ``arguments``."""
    checks = any(word == "--trust" or word.startswith("--trust=") for word in arguments)
    is_there = find_spec("cryptography") is not None  # its absence is told with the other problems
    return SIGNATURE_MODULES + SUPERVISOR_MODULES if checks and is_there else SUPERVISOR_MODULES


def import_in_stages(*modules: str) -> None:
    """Import ``modules`` in this order and give start-up pages back after each, so that no peak holds them all.

    An agent's supervisor is little more than its libraries (measured, CPython 3.11, x86-64: 27.7 MB at its peak when
    imported in one go, 21.5 so).
    """
    for name in modules:
        import_module(name)
        release_startup_pages()


def _mappings(lines: Iterable[str]) -> Iterator[_Mapping]:
    mapping: _Mapping | None = None
    for line in lines:
        head = _HEAD.match(line)
        if head:
            if mapping is not None:
                yield mapping
            mapping = _Mapping(int(head[1], 16), int(head[2], 16), head[3], int(head[4]))
        elif mapping is not None and line.startswith("Rss:"):
            mapping.resident_kb = int(line.split()[1])
        elif mapping is not None and line.startswith(_CHANGED):
            mapping.changed_kb += int(line.split()[1])
    if mapping is not None:
        yield mapping

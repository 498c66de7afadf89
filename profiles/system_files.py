"""The files a kernel tells about itself in, below a root folder, read so that none of them can raise.

A root other than ``/`` is another machine's ``/proc``, ``/sys`` and ``/etc``, copied or written by hand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

MAX_BYTES = 1 << 18
"""Of any file; a CPU list of 256 processors has 200 kB."""

_NUMBER = re.compile(r"[+-]?\d{1,18}(?![\d.])")


class Reading(NamedTuple):
    """A value and the file or call it came from."""

    value: Any
    source: str


@dataclass(frozen=True)
class SystemFiles:
    """Reads below ``root``; paths are written as on the machine itself (``/proc/meminfo``)."""

    root: Path = Path("/")

    @property
    def is_this_machine(self) -> bool:
        """Whether calls about this process say something about the machine that is read."""
        return self.root == Path("/")

    def text(self, path: str) -> str:
        """The file's text, without what follows the first NUL; empty when it cannot be read."""
        try:
            # A device may answer a read with any error, and a name can be odd enough for ValueError.
            with self._below(path).open("rb") as file:
                data = file.read(MAX_BYTES)
        except (OSError, ValueError):
            return ""
        return data.split(b"\0")[0].decode("utf-8", "replace")

    def line(self, path: str) -> str:
        """Its first line, stripped."""
        return self.text(path).partition("\n")[0].strip()

    def number(self, path: str) -> int | None:
        """The integer its first line starts with, None without one."""
        found = _NUMBER.match(self.line(path))
        return int(found[0]) if found else None

    def matching(self, pattern: str) -> list[str]:
        """Existing paths that match, ordered by their numbers; none when the folder cannot be listed."""
        try:
            found = ["/" + str(path.relative_to(self.root)) for path in self.root.glob(pattern.lstrip("/"))]
        except (OSError, ValueError):
            return []
        return sorted(found, key=_by_numbers)

    def fields(self, path: str, separator: str = ":") -> dict[str, str]:
        """``key: value`` lines, the first of each key; quotes around a value are taken off."""
        found: dict[str, str] = {}
        for line in self.text(path).splitlines():
            key, mark, value = line.partition(separator)
            if mark:
                found.setdefault(key.strip(), value.strip().strip('"'))
        return found

    def _below(self, path: str) -> Path:
        return self.root / path.lstrip("/")


def _by_numbers(path: str) -> list[tuple[int, str]]:
    """``zone2`` before ``zone10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)]

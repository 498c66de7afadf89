"""What Mosquitto writes down of a run: whom it cut off for what no device of ours does.

It writes a line for each connection as well, so its file is cut from time to time; it appends, and goes on at the end.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

LIMIT_BYTES = 1 << 20
"""A larger file loses all but its last :data:`KEPT_BYTES`."""

KEPT_BYTES = 64 << 10

# 2.0.11 has no words for a retained message and an oversize packet. Of a lost connection it says which it was.
_CUT_OFF = re.compile(
    rb"(?:Bad socket read/write on client ([\w.-]{1,64}): Unknown error\."
    rb"|Client ([\w.-]{1,64}) disconnected due to"
    rb" (?:malformed packet|protocol error|oversize packet|using not allowed feature[^\n]*))"
)


class MosquittoLog:
    """Reads what is new in ``path``; one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = path.stat().st_size if path.exists() else 0

    def cut_off(self) -> Counter[str]:
        """Client -> how often it was cut off since the last call, for a retained message or a packet that cannot be."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                news = file.read(LIMIT_BYTES)
        except OSError:
            return Counter()
        lines, _, _ = news.rpartition(b"\n")
        self._read += len(lines)
        if self._read > LIMIT_BYTES:
            self._cut(lines)
        return Counter((found[1] or found[2]).decode() for found in _CUT_OFF.finditer(lines))

    def _cut(self, lines: bytes) -> None:
        with self._path.open("r+b") as file:
            file.truncate(0)
        with self._path.open("ab") as file:
            file.write(b"earlier lines were cut\n" + lines[-KEPT_BYTES:] + b"\n")
            self._read = file.tell()

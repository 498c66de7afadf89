"""What trackers have of a run, in ``tracking.json`` of its directory: a resumed run goes on in the same places."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec

FILE = "tracking.json"


class Tracked(msgspec.Struct, kw_only=True):
    """The file.

    Attributes:
        names: tracker -> its own name for the run.
        rounds: tracker -> rounds that it has taken, from the first one on.
    """

    names: dict[str, str] = {}
    rounds: dict[str, int] = {}


class TrackingRecord:
    """Reads the file when it is made, and writes it from any thread. One that is unreadable counts as none."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / FILE
        self._lock = threading.Lock()
        try:
            self._tracked = msgspec.json.decode(self._path.read_bytes(), type=Tracked)
        except (OSError, msgspec.MsgspecError):
            self._tracked = Tracked()

    def name(self, tracker: str) -> str:
        """What :meth:`remember` was told; empty: nothing."""
        return self._tracked.names.get(tracker, "")

    def rounds(self, tracker: str) -> int:
        """How many rounds ``tracker`` has."""
        return self._tracked.rounds.get(tracker, 0)

    def remember(self, tracker: str, name: str) -> None:
        """Keep a tracker's own name for the run."""
        with self._lock:
            self._tracked.names[tracker] = name
            self._write()

    def has(self, tracker: str, rounds: int) -> None:
        """Keep that ``tracker`` has the first ``rounds`` rounds."""
        with self._lock:
            self._tracked.rounds[tracker] = rounds
            self._write()

    def _write(self) -> None:
        # Not synced: after a power cut a tracker hears of some rounds again, with the same figures.
        unfinished = self._path.with_name(f".{FILE}.new")
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(self._tracked, order="deterministic")))
        os.replace(unfinished, self._path)

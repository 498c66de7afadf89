"""What a person sees while a federation runs: one line per event on stderr, and metrics.jsonl beside it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, TextIO

MB = 1e6


class Progress:
    """Writes live lines to ``stream`` and one JSON object per event to ``metrics``; None turns either off."""

    def __init__(self, *, stream: TextIO | None = sys.stderr, metrics: Path | None = None) -> None:
        self._stream = stream
        self._metrics = metrics
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        """One line for people."""
        if self._stream is not None:
            print(f"{time.monotonic() - self._started:7.1f}s  {text}", file=self._stream, flush=True)

    def record(self, event: str, **values: Any) -> None:
        """One line of ``metrics.jsonl``."""
        if self._metrics is not None:
            line = {"event": event, "at_s": round(time.monotonic() - self._started, 3), **values}
            with self._metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, sort_keys=True) + "\n")

    def round_line(self, index: int, rounds: int, text: str) -> None:
        """``[ROUND 3/10] text``; rounds are counted from 1 for people."""
        self.say(f"[ROUND {index + 1}/{rounds}] {text}")


def megabytes(count: int) -> str:
    """Bytes as ``12.3 MB`` (10^6)."""
    return f"{count / MB:.1f} MB"

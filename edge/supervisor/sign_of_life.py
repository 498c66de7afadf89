"""A file that is touched while an agent's loop turns, for whoever restarts agents that hang: containers, watchdogs.

It says nothing of the connection: an agent whose broker is away tries again by itself, and may be training meanwhile.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path

EVERY_S = 10.0

log = logging.getLogger("apportion.agent")


class SignOfLife:
    """One file. None of it when ``path`` is None."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._due_at = -math.inf

    def tick(self, now: float) -> None:
        """Touch the file where :data:`EVERY_S` have passed since the last time; a disk that takes no file ends nobody.

        Args:
            now: seconds of the monotonic clock.
        """
        if self._path is None or now < self._due_at:
            return
        self._due_at = now + EVERY_S
        try:
            self._path.touch()
        except OSError as error:
            log.warning("no sign of life at %s: %s", self._path, error)

"""Blobs that are about to be deleted: moved out of sight first, so that whoever puts one meanwhile puts it anew.

Whoever wants one meanwhile moves it back, also when the process that moved it stands still or is no more.
"""

from __future__ import annotations

from pathlib import Path

PREFIX = "old-"


class OutOfSight:
    """Such blobs, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, path: Path, before: float) -> Path | None:
        """Where the blob at ``path`` is now, to be deleted; None when it was put at ``before`` or later, or is gone."""
        held = self._folder / f"{PREFIX}{path.name}"
        try:
            if path.stat().st_mtime >= before:
                return None
            path.rename(held)
            if held.stat().st_mtime < before:
                return held
            held.rename(path)
        except FileNotFoundError:
            pass  # somebody else has deleted it, or wants it and has moved it back
        return None

    def bring_back(self, path: Path) -> bool:
        """Whether the blob at ``path`` was out of sight; it is there again."""
        held = self._folder / f"{PREFIX}{path.name}"
        if not held.exists():
            return False
        try:
            held.rename(path)
        except FileNotFoundError:
            return False
        return True

"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def sync(file: BinaryIO) -> None:
    """Flush ``file`` to the disk."""
    file.flush()
    os.fsync(file.fileno())


def publish_file(temporary: Path, path: Path) -> None:
    """Rename a synced file into place and sync the folder: it exists whole, or not at all."""
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)

"""Files that are there whole or not at all, and what a disk that takes nothing more says.

After a sync that failed the kernel may have forgotten what was to be written and call the next sync of the same file a
success. So nobody syncs a file again: its bytes are written anew, to a new file.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk, or of a user's share of it, that is full."""


def sync(file: BinaryIO) -> None:
    """Flush ``file`` to the disk; one for which this failed is not to be synced again, but written anew."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish_file(temporary: Path, path: Path) -> None:
    """Rename a synced file into place and sync the folder: it exists whole, or not at all.

    Raises:
        OSError: ``path`` may be there now, and gone after a power cut: write it anew.
    """
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_whole(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path``, on disk when this returns; a reader sees the old file or the new one.

    Raises:
        OSError: it is not on disk; no half of it is left.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with temporary.open("xb") as file:
            file.write(data)
            sync(file)
        publish_file(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)

"""Files that appear under their name whole or not at all: written under another name, locked while they are."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from edge.contracts.errors import ApportionError, StoreFull, StoreUnreachable
from edge.system.atomic_files import FULL


@contextlib.contextmanager
def incoming_file(folder: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file in ``folder``, locked while it is open and gone afterwards, unless it was renamed."""
    while True:
        path = folder / uuid.uuid4().hex
        with path.open("xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not os.fstat(file.fileno()).st_nlink:
                continue  # somebody tidied between the two lines above
            try:
                yield path, file
                return
            finally:
                path.unlink(missing_ok=True)


def left_half_written(folder: Path) -> list[Path]:
    """Files that processes which are no more were writing in ``folder``; those of living ones are locked."""
    return [path for path in folder.iterdir() if not _is_locked(path)] if folder.is_dir() else []


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return True  # its writer has finished
    return False


def free_bytes(folder: Path) -> int:
    """Bytes that can still be written where ``folder`` is."""
    return shutil.disk_usage(folder).free


def disk_error(error: OSError, folder: Path, needed: int) -> ApportionError:
    """The error to raise for a failed write of ``needed`` bytes: StoreFull, or StoreUnreachable for anything else."""
    if error.errno not in FULL:
        return StoreUnreachable(
            f"{folder}: {needed} bytes not written ({error.strerror or error}); see the state of that disk"
        )
    try:
        free = f"{free_bytes(folder)} are free"
    except OSError:
        free = "none are free"
    return StoreFull(
        f"{folder}: {needed} bytes do not fit, {free}; free some disk space, or release what else is there"
    )

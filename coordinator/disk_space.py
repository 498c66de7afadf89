"""What a disk that takes no more is told as: how much was wanted, how much there is, and what to do."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from edge.contracts.errors import ApportionError, StoreFull, StoreUnreachable

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk, or of a user's share of it, that is full."""


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

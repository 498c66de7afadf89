"""The folder of feature files: one for each set of frozen values, those used least recently removed for another."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edge.contracts.errors import DeviceRefused
from edge.training.feature_cache.sealing import Checksum, Encryption, secret_of

if TYPE_CHECKING:
    from edge.training.feature_cache.record_file import RecordFile

log = logging.getLogger("apportion.features")

_ENCRYPTED = ".encrypted"
_HEAD_BYTES = 64
"""Room for what a record has beside its features."""


def record_path(
    folder: Path, key: bytes, feature_bytes: int, *, examples: int, limit_bytes: int, is_encrypted: bool
) -> Path | None:
    """Where the records of ``key`` are to be, with room for them; None where none may be kept.

    Args:
        feature_bytes: of one example, see :func:`edge.training.feature_cache.artifact.kept_bytes`.
        limit_bytes: what all files of ``folder`` may take; those used least recently are removed for this one.

    Raises:
        OSError: the disk does not let them.
    """
    plain = folder / key.hex()
    path = plain.with_suffix(_ENCRYPTED) if is_encrypted else plain
    if limit_bytes <= 0:
        _remove_oldest(folder, lambda used: used > 0)
        return None
    folder.mkdir(parents=True, exist_ok=True)
    wanted = min(limit_bytes, examples * (feature_bytes + _HEAD_BYTES))
    if is_encrypted:
        plain.unlink(missing_ok=True)  # of a time when the device had no key
    _remove_oldest(folder, lambda used: used + wanted > limit_bytes, but=path)
    if path.exists():
        os.utime(path)
    return path


def open_records(
    folder: Path, key: bytes, feature_bytes: int, *, examples: int, limit_bytes: int, key_file: Path | None = None
) -> RecordFile | None:
    """The records of ``key`` in ``folder``, as :func:`record_path` makes room for them.

    Args:
        key_file: of the device's private key, with a secret of which records are encrypted; None: they are not.

    None where no record may be kept, or where the disk does not let them: steps then compute what they need.
    """
    from edge.training.feature_cache.record_file import RecordFile  # NumPy, which not everybody who asks where has

    try:
        path = record_path(
            folder,
            key,
            feature_bytes,
            examples=examples,
            limit_bytes=limit_bytes,
            is_encrypted=key_file is not None,
        )
        if path is None:
            return None
        sealing = Encryption(secret_of(key_file), key) if key_file else Checksum(key)
        return RecordFile(path, sealing, examples=examples, feature_bytes=feature_bytes, limit_bytes=limit_bytes)
    except (OSError, DeviceRefused) as error:
        log.warning("no features are kept in %s, every step computes its own: %s", folder, error)
        return None


def _remove_oldest(folder: Path, is_too_much: Callable[[int], bool], but: Path | None = None) -> None:
    """Remove files that were used least recently while what the rest takes is too much."""
    if not folder.is_dir():
        return
    others = sorted((p for p in folder.iterdir() if p != but), key=lambda p: p.stat().st_mtime_ns)
    sizes = {path: path.stat().st_size for path in others}
    while others and is_too_much(sum(sizes[path] for path in others)):
        others.pop(0).unlink(missing_ok=True)

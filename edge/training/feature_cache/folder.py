"""The folder of feature files: one for each set of frozen values, those used least recently removed for another."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edge.contracts.errors import DeviceRefused
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import WorkOrder
from edge.contracts.tensors import FEATURES, TensorSpec, is_carried
from edge.training.feature_cache.record_file import RecordFile
from edge.training.feature_cache.sealing import Checksum, Encryption, secret_of

if TYPE_CHECKING:
    from edge.runtimes.base import Session

log = logging.getLogger("apportion.features")

_VERSION = "apportion.features/2"
_ENCRYPTED = ".encrypted"


def features_spec(manifest: ArtifactManifest) -> TensorSpec | None:
    """The tensor that program ``features`` gives; None of an artifact without it."""
    found = manifest.specs("features")
    return found[0] if found else None


def features_key(manifest: ArtifactManifest, order: WorkOrder, session: Session, runtime: str) -> bytes:
    """32 bytes that stand for all that features depend on but the example: the graph, the base, the frozen values that
    the session holds now, and ``runtime``, whose releases round differently."""
    program = manifest.program(FEATURES)
    specs = {spec.name: spec for spec in manifest.tensors}
    files = {file.name: file.sha256 for file in manifest.files}
    found = hashlib.sha256(repr((_VERSION, runtime, files[program.file])).encode())
    if isinstance(manifest.features_kept_as, str):
        found.update(f"kept as {manifest.features_kept_as}".encode())
    if any(specs[name].role == "mapped" for name in program.inputs):
        found.update((order.constants or order.weights).digest.encode())
    for name in program.inputs:
        if is_carried(specs[name]):
            found.update(name.encode() + b"\0")
            found.update(np.ascontiguousarray(session.read(name)).reshape(-1).view(np.uint8).data)
    return found.digest()


def open_records(
    folder: Path, key: bytes, feature_bytes: int, *, examples: int, limit_bytes: int, key_file: Path | None = None
) -> RecordFile | None:
    """The records of ``key`` in ``folder``, whose files together take at most ``limit_bytes``.

    Args:
        feature_bytes: of one example, see :func:`edge.training.feature_cache.rounding.kept_bytes`.
        key_file: of the device's private key, with a secret of which records are encrypted; None: they are not.

    None where no record may be kept, or where the disk does not let them: steps then compute what they need.
    """
    plain = folder / key.hex()
    path = plain.with_suffix(_ENCRYPTED) if key_file else plain
    try:
        if limit_bytes <= 0:
            _remove_oldest(folder, lambda used: used > 0)
            return None
        folder.mkdir(parents=True, exist_ok=True)
        wanted = min(limit_bytes, examples * (feature_bytes + 64))
        if key_file:
            plain.unlink(missing_ok=True)  # of a time when the device had no key
        _remove_oldest(folder, lambda used: used + wanted > limit_bytes, but=path)
        sealing = Encryption(secret_of(key_file), key) if key_file else Checksum(key)
        records = RecordFile(path, sealing, examples=examples, feature_bytes=feature_bytes, limit_bytes=limit_bytes)
        os.utime(path)
    except (OSError, DeviceRefused) as error:
        log.warning("no features are kept in %s, every step computes its own: %s", folder, error)
        return None
    return records


def _remove_oldest(folder: Path, is_too_much: Callable[[int], bool], but: Path | None = None) -> None:
    """Remove files that were used least recently while what the rest takes is too much."""
    if not folder.is_dir():
        return
    others = sorted((p for p in folder.iterdir() if p != but), key=lambda p: p.stat().st_mtime_ns)
    sizes = {path: path.stat().st_size for path in others}
    while others and is_too_much(sum(sizes[path] for path in others)):
        others.pop(0).unlink(missing_ok=True)

"""Features of frozen layers that steps read, in flat form: what gives them, how they are kept, and in which file."""

from __future__ import annotations

import logging
from pathlib import Path

from edge.contracts.errors import DeviceRefused
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.tensors import FEATURES
from edge.flat_orders.programs import Programs
from edge.flat_orders.request import FlatRequest
from edge.flat_orders.state import State
from edge.flat_orders.writing import FlatWriter, Unable
from edge.training.feature_cache.artifact import FLOAT16, INT8, features_key, features_spec, kept_bytes
from edge.training.feature_cache.folder import record_path
from edge.training.feature_cache.sealing import cipher_key, secret_of

log = logging.getLogger("apportion.features")

_ROUNDED_TO = {FLOAT16: 1, INT8: 2}


def write_features(
    writer: FlatWriter,
    request: FlatRequest,
    manifest: ArtifactManifest,
    programs: Programs,
    state: State,
    *,
    examples: int,
) -> None:
    """What steps read features from; programs and state may get numbers by it.

    Args:
        examples: in the local data.

    Raises:
        Unable: features of another kind than the native trainer knows.
    """
    spec = features_spec(manifest)
    if spec is None or not programs.read_features():
        writer.integer(-1, 0, 0, 0)
        writer.text("", "", "")
        writer.integer(0)
        return
    kind = manifest.features_kept_as
    try:
        size = kept_bytes(manifest)
    except DeviceRefused as error:
        raise Unable(str(error)) from error
    writer.integer(programs.number(manifest.program(FEATURES)), spec.element_count())
    writer.integer(_ROUNDED_TO[kind] if isinstance(kind, str) else 0)
    writer.integer(max(1, manifest.batch // manifest.micro_batches))  # examples at a time, as memory is predicted for
    runtime = f"{manifest.runtime} {manifest.minimum_runtime_version}"
    key = features_key(manifest, request.order, state.pieces, runtime)
    path, cipher = _kept(request, key, size, examples)
    writer.text(path, key, cipher)
    writer.integer(request.features_bytes)


def _kept(request: FlatRequest, key: bytes, size: int, examples: int) -> tuple[str, bytes]:
    """Path of the records, and what they are encrypted with: empty where they are not, or where none are kept."""
    if not request.features:
        return "", b""
    try:
        cipher = cipher_key(secret_of(Path(request.features_key)), key) if request.features_key else b""
        path = record_path(
            Path(request.features),
            key,
            size,
            examples=examples,
            limit_bytes=request.features_bytes,
            is_encrypted=bool(cipher),
        )
    except OSError as error:
        log.warning("no features are kept in %s, every step computes its own: %s", request.features, error)
        return "", b""
    return ("", b"") if path is None else (str(path), cipher)

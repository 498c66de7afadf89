"""What an artifact says of the features that its steps read, and what these depend on; without NumPy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from edge.contracts.errors import DeviceRefused
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import WorkOrder
from edge.contracts.tensors import FEATURES, TensorSpec, is_carried

FLOAT16, INT8 = "float16", "int8"
"""Types that features are rounded to, see :mod:`edge.training.feature_cache.rounding`."""

SCALE_BYTES = 8
"""Of ``int8``, before an example's values: the smallest of them and a step."""

_VERSION = "apportion.features/3"


def features_spec(manifest: ArtifactManifest) -> TensorSpec | None:
    """The tensor that program ``features`` gives; None of an artifact without it."""
    found = manifest.specs("features")
    return found[0] if found else None


def kept_bytes(manifest: ArtifactManifest) -> int:
    """Bytes that the features of one example take, of an artifact that has some.

    Raises:
        DeviceRefused: they are rounded to a type that this agent does not know.
    """
    (spec,) = manifest.specs("features")
    kind = manifest.features_kept_as
    if not isinstance(kind, str):
        return spec.byte_count()
    return rounded_bytes(kind, spec.element_count())


def rounded_bytes(kind: str, elements: int) -> int:
    """Bytes of so many values of one example as ``kind``.

    Raises:
        DeviceRefused: a type that this agent does not know.
    """
    if kind not in (FLOAT16, INT8):
        raise DeviceRefused(f"features are to be kept as {kind}, this agent knows {FLOAT16} and {INT8}; update it")
    return 2 * elements if kind == FLOAT16 else SCALE_BYTES + elements


def features_key(
    manifest: ArtifactManifest, order: WorkOrder, values: Callable[[str], Iterable[bytes | memoryview]], runtime: str
) -> bytes:
    """32 bytes that stand for all that features depend on but the example: the graph, the base, the frozen values, and
    ``runtime``, whose releases round differently.

    Args:
        values: the bytes of a frozen tensor that the order starts from, in pieces.
    """
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
            for piece in values(name):
                found.update(piece)
    return found.digest()

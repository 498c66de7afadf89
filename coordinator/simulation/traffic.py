"""Bytes that a submodel and its update are on the wire: tensor files, uncompressed; no artifacts, no messages."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.submodels.packed_tensors import changing_layout, constant_tensors, masks_of
from edge.contracts.packing import KEPT
from edge.contracts.precision import SCALE, is_coded, scale_shape

if TYPE_CHECKING:
    import numpy as np

    from coordinator.submodels.values import Submodel, Tensors
    from edge.contracts.manifest import ArtifactManifest
    from edge.contracts.plan import BlobRef, Precision, WorkOrder

_Layout = tuple[tuple[str, tuple[int, ...], str], ...]


@dataclass(frozen=True)
class Traffic:
    """Bytes to a device and back in one round.

    Attributes:
        constants: digest of what stays over rounds (frozen tensors, masks), empty when there is nothing; a device that
            has it is not sent it again.
    """

    down: int
    up: int
    constants: str = ""

    @classmethod
    def of(
        cls,
        submodel: Submodel,
        order: WorkOrder,
        update: Tensors,
        *,
        held: str = "",
        base: BlobRef | None = None,
        manifest: ArtifactManifest | None = None,
    ) -> Traffic:
        """What an order and its update cost.

        Args:
            update: whole tensors.
            held: ``constants`` of the device's last round.
            base: the run's base file, of a submodel that has one.
            manifest: says which tensors travel in fewer bits where the order asks for it; None: none do.
        """
        constant = constant_tensors(submodel)
        digest = _digest(constant) if constant else ""
        stays = _file_bytes(_layout(constant)) if constant else 0
        if submodel.program.has_base and base is not None:
            digest, stays = base.digest, base.size
        down = _file_bytes(changing_layout(submodel)) + (stays if digest not in ("", held) else 0)
        masks = masks_of(submodel.tensors)
        sent: list[tuple[str, tuple[int, ...], str]] = []
        for name in order.upload:
            value = update[name.removesuffix(KEPT)]
            shape = (int(masks[name.removesuffix(KEPT)].sum()),) if name.endswith(KEPT) else value.shape
            is_short = manifest is not None and is_coded(manifest.tensor(name.removesuffix(KEPT)))
            sent += _coded(name, shape, order.precision) if is_short else [(name, shape, value.dtype.name)]
        return cls(down, _file_bytes(tuple(sent)), digest or held)


def _coded(name: str, shape: tuple[int, ...], precision: Precision) -> _Layout:
    if precision == "int8":
        return (name, shape, "int8"), (name + SCALE, scale_shape(shape), "float32")
    return ((name, shape, "float16" if precision == "fp16" else "float32"),)


def _layout(tensors: Mapping[str, np.ndarray]) -> _Layout:
    return tuple((name, value.shape, value.dtype.name) for name, value in tensors.items())


def _digest(tensors: Mapping[str, np.ndarray]) -> str:
    import numpy as np

    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()


@functools.lru_cache(maxsize=256)
def _file_bytes(layout: _Layout) -> int:
    """Size of a tensor file of this layout; it does not depend on the values."""
    import numpy as np

    from edge.contracts.tensor_file import encode_tensors

    return len(encode_tensors({name: np.zeros(shape, dtype) for name, shape, dtype in layout}))

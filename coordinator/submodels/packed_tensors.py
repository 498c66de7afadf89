"""A submodel's tensors as they travel, and an update's as methods take it: masked tensors packed and whole again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from edge.contracts.masking import WEIGHT
from edge.contracts.packing import KEPT, MASK, SHAPE, kept_values, pack_mask, unpack_mask
from edge.contracts.tensor_file import read_tensor_file
from edge.contracts.tensors import DType, TensorSpec

if TYPE_CHECKING:
    import numpy as np

    from coordinator.blobs.blob_store import BlobStore
    from coordinator.submodels.values import Submodel, Tensors
    from edge.contracts.manifest import ArtifactManifest
    from edge.contracts.plan import WorkOrder


def split_tensors(submodel: Submodel) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(What changes from round to round, masked tensors as their kept values; frozen tensors and masks, packed).

    Beside a base file, which is what stays, all tensors count as changing.
    """
    masks = _packing_masks(submodel)
    packed = {
        name + KEPT if name in masks else name: kept_values(value, masks[name]) if name in masks else value
        for name, value in _changing(submodel).items()
    }
    return packed, constant_tensors(submodel)


def changing_layout(submodel: Submodel) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """Name, shape and type of the first of :func:`split_tensors`, for who counts and needs no values."""
    kept = {name: (int(mask.sum()),) for name, mask in _packing_masks(submodel).items()}
    return tuple(
        (name + KEPT if name in kept else name, kept.get(name, value.shape), value.dtype.name)
        for name, value in _changing(submodel).items()
    )


def constant_tensors(submodel: Submodel) -> dict[str, np.ndarray]:
    """What stays for rounds: frozen tensors, and masks, packed; nothing beside a base file."""
    if submodel.program.has_base:
        return {}
    constant: dict[str, np.ndarray] = {}
    for name, value in submodel.tensors.items():
        if name.endswith(MASK):
            constant |= pack_mask(name.removesuffix(MASK), value)
        elif name in submodel.program.frozen:
            constant[name] = value
    return constant


def _changing(submodel: Submodel) -> dict[str, np.ndarray]:
    if submodel.program.has_base:
        return dict(submodel.tensors)
    frozen = submodel.program.frozen
    return {n: v for n, v in submodel.tensors.items() if not (n.endswith(MASK) or n in frozen)}


def _packing_masks(submodel: Submodel) -> dict[str, np.ndarray]:
    """The masks by which tensors are packed: none beside a base file."""
    return {} if submodel.program.has_base else masks_of(submodel.tensors)


def masks_of(tensors: Tensors) -> dict[str, np.ndarray]:
    """The masks among a submodel's tensors, by the name of what they mask."""
    return {name.removesuffix(MASK): value for name, value in tensors.items() if name.endswith(MASK)}


def order_masks(blobs: BlobStore, order: WorkOrder) -> dict[str, np.ndarray]:
    """The masks an order went out with, by the name of what they mask; none without masked tensors.

    Raises:
        ArtifactCorrupt: they cannot be read.
    """
    if order.constants is None or not any(name.endswith(KEPT) for name in order.upload):
        return {}
    where = f"constants of round {order.round}"
    tensors = read_tensor_file(blobs.path(order.constants.digest), where=where)
    packed = [name.removesuffix(SHAPE) for name in tensors if name.endswith(SHAPE)]
    return {name: unpack_mask(name, tensors, where=where) for name in packed}


def trained_names(manifest: ArtifactManifest) -> list[str]:
    """Names of what a training update holds: parameters, masked ones as kept entries, statistics, accumulators."""
    masked = {spec.name.removesuffix(MASK) for spec in manifest.specs("grad_mask")}
    specs = manifest.specs("parameter", "buffer", "accumulator")
    return [spec.name + KEPT if spec.name in masked else spec.name for spec in specs]


def upload_specs(manifest: ArtifactManifest, order: WorkOrder, masks: Mapping[str, np.ndarray]) -> list[TensorSpec]:
    """What exactly the update of ``order`` must hold."""
    specs = []
    dtype: DType | None = None if order.masking is None else "int32"
    for name in order.upload:
        spec = manifest.tensor(name.removesuffix(KEPT))
        if name.endswith(KEPT):
            spec = TensorSpec(name, (int(masks[spec.name].sum()),), spec.dtype, spec.role)
        specs.append(spec if dtype is None else TensorSpec(name, spec.shape, dtype, spec.role))
    if dtype is not None:
        specs.append(TensorSpec(WEIGHT, (1,), dtype, "metric"))
    return specs

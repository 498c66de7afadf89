"""Which entries of a whole tensor a device's part of it are, and whether such a part can be aggregated."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from coordinator.aggregation.summing import are_all_finite
from edge.contracts.errors import UpdateRejected

if TYPE_CHECKING:
    from coordinator.submodels.narrowed import Slice
    from coordinator.submodels.values import Tensors


class FiniteTensors(dict[str, np.ndarray]):
    """Tensors by name that were searched for values that are not finite, and whose bytes are the same since."""


def weights_of(tensors: Tensors, weight: float | Mapping[str, float]) -> dict[str, float]:
    """The weight of every tensor by name, from one for all or one for each."""
    return {name: float(weight if isinstance(weight, int | float) else weight[name]) for name in tensors}


def check_parts(
    reference: Tensors,
    tensors: Tensors,
    weights: Mapping[str, float],
    slices: Mapping[str, Slice],
    *,
    where: str,
) -> None:
    """Check that every tensor is a part of the reference that can be summed.

    Raises:
        UpdateRejected: an unknown tensor, a wrong shape, values or a weight that are not finite.
    """
    for name, value in tensors.items():
        if name not in reference:
            raise UpdateRejected(f"{where}: tensor '{name}' is not in the global model; re-plan the device")
        expected, kept = tuple(reference[name].shape), slices.get(name)
        if kept is not None:
            expected = tuple(size if part is None else len(part) for part, size in zip(kept, expected, strict=True))
        if tuple(value.shape) != expected:
            raise UpdateRejected(
                f"{where}: '{name}' has shape {tuple(value.shape)}, its part of the global model {expected}; "
                "re-plan the device"
            )
    for weight in dict.fromkeys(weights.values()):
        if not (math.isfinite(weight) and weight >= 0):
            raise UpdateRejected(f"{where}: has weight {weight}, a finite one from 0 up expected")
    if not isinstance(tensors, FiniteTensors) and not are_all_finite(tensors.values()):
        for name, value in tensors.items():
            check_finite(name, value, where=where)


def check_finite(name: str, value: np.ndarray, *, where: str) -> None:
    """Check that tensor ``name`` can be summed.

    Raises:
        UpdateRejected: a value that is not finite.
    """
    if not are_all_finite([value]):
        raise UpdateRejected(f"{where}: '{name}' holds values that are not finite; lower its learning rate")


def place_of(
    shape: tuple[int, ...], kept: Slice | None, rows: Collection[int] | None
) -> tuple[tuple[Any, ...], np.ndarray | None]:
    """Where a part lies in a tensor of ``shape``, as an index, and which of the part's own rows count; None = all."""
    indices = [
        np.arange(size) if part is None else part
        for part, size in zip(kept or (None,) * len(shape), shape, strict=True)
    ]
    owned = None
    if rows is not None:
        owned = np.isin(indices[0], np.fromiter(rows, dtype=np.int64))
        indices[0] = indices[0][owned]
    if all(len(part) and int(part[-1]) - int(part[0]) + 1 == len(part) and _is_rising(part) for part in indices):
        # A block: a view, where index arrays would gather and scatter copies.
        return tuple(slice(int(part[0]), int(part[-1]) + 1) for part in indices), owned
    return np.ix_(*indices), owned


def _is_rising(part: np.ndarray) -> bool:
    return bool((np.diff(part) == 1).all())

"""The mean per entry over the devices that held it, streamed: float64 sums and weights, one division at the end.

Devices of a cut in width send parts of a tensor; each entry of the whole tensor is the mean over those who trained it,
and an entry nobody held keeps its bits. Dividing by the number of all devices instead would shrink what few devices
hold. Source: HeteroFL (Diao et al., ICLR 2021), section 3; FedRolex, Federated Dropout, SLT and PriSM (Eq. 5) alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from coordinator.aggregation.weighted_mean import check_finite
from edge.contracts.errors import UpdateRejected

if TYPE_CHECKING:
    from coordinator.methods.method import Tensors
    from coordinator.submodels.narrowed import Slice


class EntrywiseMean:
    """Sums of weight times value and of weights, entry by entry.

    Memory is two float64 copies of the model whatever the number of devices; a tensor that every device sends whole
    needs one.
    """

    def __init__(self, reference: Tensors) -> None:
        """``reference``: the tensors aggregated into; gives names, shapes, dtypes, and the values of untouched ones."""
        self._reference = reference
        self._sums: dict[str, np.ndarray] = {}
        self._weights: dict[str, np.ndarray] = {}

    def add(
        self,
        tensors: Tensors,
        weight: float | Mapping[str, float],
        *,
        where: str,
        slices: Mapping[str, Slice] | None = None,
        rows: Mapping[str, Collection[int]] | None = None,
    ) -> None:
        """Add one device's tensors; either all of them or none.

        Args:
            weight: of all tensors, or of each.
            where: who sent them, for the message.
            slices: which entries of the reference a tensor holds; one that is not named is whole.
            rows: tensors of which only these rows count (a classifier's, of the labels the device owns), as indices
                into the reference.

        Raises:
            UpdateRejected: an unknown tensor, a wrong shape, values or a weight that are not finite.
        """
        slices, rows = slices or {}, rows or {}
        weights = {name: float(weight if isinstance(weight, int | float) else weight[name]) for name in tensors}
        for name, value in tensors.items():
            self._check(name, value, weights[name], slices.get(name), where)
        for name, value in tensors.items():
            self._add(name, value, weights[name], slices.get(name), rows.get(name))

    def result(self) -> dict[str, np.ndarray]:
        """The means in the reference's dtypes (integers rounded); entries nobody held keep the reference's bits."""
        result = {}
        for name, before in self._reference.items():
            if name not in self._sums:
                result[name] = before
                continue
            total, weight = self._sums[name], self._weights[name]
            held = weight > 0
            mean = np.divide(total, weight, out=np.zeros(before.shape), where=held)
            if before.dtype.kind in "iu":
                mean = np.rint(mean)
            result[name] = np.where(held, mean.astype(before.dtype), before)
        return result

    def _add(
        self, name: str, value: np.ndarray, weight: float, kept: Slice | None, rows: Collection[int] | None
    ) -> None:
        shape = self._reference[name].shape
        if name not in self._sums:
            self._sums[name] = np.zeros(shape)
            # One weight for the whole tensor until a device holds a part of it.
            self._weights[name] = np.zeros(())
        term = np.multiply(value, weight, dtype=np.float64)
        if kept is None and rows is None:
            self._sums[name] += term
            self._weights[name] = self._weights[name] + weight
            return
        if self._weights[name].shape != shape:
            self._weights[name] = np.full(shape, float(self._weights[name]))
        indices = [
            np.arange(size) if part is None else part
            for part, size in zip(kept or (None,) * len(shape), shape, strict=True)
        ]
        if rows is not None:
            owned = np.isin(indices[0], np.fromiter(rows, dtype=np.int64))
            indices[0], term = indices[0][owned], term[owned]
        place = np.ix_(*indices)
        self._sums[name][place] += term
        self._weights[name][place] += weight

    def _check(self, name: str, value: np.ndarray, weight: float, kept: Slice | None, where: str) -> None:
        if name not in self._reference:
            raise UpdateRejected(f"{where}: tensor '{name}' is not in the global model; re-plan the device")
        whole = tuple(self._reference[name].shape)
        expected = whole
        if kept is not None:
            expected = tuple(size if part is None else len(part) for part, size in zip(kept, whole, strict=True))
        if tuple(value.shape) != expected:
            raise UpdateRejected(
                f"{where}: '{name}' has shape {tuple(value.shape)}, its part of the global model {expected}; "
                "re-plan the device"
            )
        check_finite(name, value, weight, where=where)

"""The mean per entry over the devices that held it, streamed: float64 sums and weights, one division at the end.

Devices of a cut in width send parts of a tensor; each entry of the whole tensor is the mean over those who trained it,
and an entry nobody held keeps its bits. Dividing by the number of all devices instead would shrink what few devices
hold. Source: HeteroFL (Diao et al., ICLR 2021), section 3; FedRolex, Federated Dropout, SLT and PriSM (Eq. 5) alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from coordinator.aggregation.parts import check_parts, place_of, weights_of
from coordinator.aggregation.summing import Term, WeightedSums

if TYPE_CHECKING:
    from coordinator.submodels.narrowed import Slice
    from coordinator.submodels.values import Tensors


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
        self._terms = WeightedSums()

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
        weights = weights_of(tensors, weight)
        check_parts(self._reference, tensors, weights, slices, where=where)
        if slices or rows:
            self._terms.settle()  # every entry's terms in the order of the updates
        whole: list[Term] = []
        for name, value in tensors.items():
            if name not in self._sums:
                self._sums[name] = np.zeros(self._reference[name].shape)
                # One weight for the whole tensor until a device holds a part of it.
                self._weights[name] = np.zeros(())
            if name in slices or name in rows:
                self._add_part(name, value, weights[name], slices.get(name), rows.get(name))
            else:
                whole.append((self._sums[name], value, weights[name]))
                self._weights[name] = self._weights[name] + weights[name]
        self._terms.add(whole)

    def result(self) -> dict[str, np.ndarray]:
        """The means in the reference's dtypes (integers rounded); entries nobody held keep the reference's bits."""
        self._terms.settle()
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

    def _add_part(
        self, name: str, value: np.ndarray, weight: float, kept: Slice | None, rows: Collection[int] | None
    ) -> None:
        shape = self._reference[name].shape
        if self._weights[name].shape != shape:
            self._weights[name] = np.full(shape, float(self._weights[name]))
        place, owned = place_of(shape, kept, rows)
        term = np.multiply(value if owned is None else value[owned], weight, dtype=np.float64)
        self._sums[name][place] += term
        self._weights[name][place] += weight

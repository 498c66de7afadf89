"""The weighted mean of the devices' tensors, streamed: float64 sums in the order given, one division at the end.

Every tensor keeps its own total weight, so a tensor that only some devices trained is the mean over those devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from edge.contracts.errors import UpdateRejected

if TYPE_CHECKING:
    from coordinator.methods.method import Tensors


class WeightedMean:
    """Sum of weight times tensor, by name; memory is one float64 copy of the model whatever the number of devices."""

    def __init__(self, reference: Tensors) -> None:
        """``reference``: the tensors aggregated into; gives names, shapes, dtypes, and the values of untouched ones."""
        self._reference = reference
        self._sums: dict[str, np.ndarray] = {}
        self._weights: dict[str, float] = {}

    def add(self, tensors: Tensors, weight: float | Mapping[str, float], *, where: str) -> None:
        """Add one device's tensors, all with one weight or each with its own.

        Either all of them are added or none.

        Args:
            where: who sent them, for the message.

        Raises:
            UpdateRejected: an unknown tensor, a wrong shape, values or a weight that are not finite.
        """
        weights = {name: float(weight if isinstance(weight, int | float) else weight[name]) for name in tensors}
        for name, value in tensors.items():
            self._check(name, value, weights[name], where)
        for name, value in tensors.items():
            term = np.multiply(value, weights[name], dtype=np.float64)
            if name in self._sums:
                self._sums[name] += term
            else:
                self._sums[name] = term
            self._weights[name] = self._weights.get(name, 0.0) + weights[name]

    def result(self) -> dict[str, np.ndarray]:
        """The means in the reference's dtypes (integers rounded); tensors nobody sent keep the reference's value."""
        result = {}
        for name, before in self._reference.items():
            if self._weights.get(name, 0.0) > 0:
                mean = self._sums[name] / self._weights[name]
                result[name] = (np.rint(mean) if before.dtype.kind in "iu" else mean).astype(before.dtype)
            else:
                result[name] = before
        return result

    def _check(self, name: str, value: np.ndarray, weight: float, where: str) -> None:
        if name not in self._reference:
            raise UpdateRejected(f"{where}: tensor '{name}' is not in the global model; re-plan the device")
        expected = tuple(self._reference[name].shape)
        if tuple(value.shape) != expected:
            raise UpdateRejected(
                f"{where}: '{name}' has shape {tuple(value.shape)} in the global model's form, {expected} expected; "
                "re-plan the device"
            )
        check_finite(name, value, weight, where=where)


def check_finite(name: str, value: np.ndarray, weight: float, *, where: str) -> None:
    """Nothing when tensor ``name`` and its weight can be summed.

    Raises:
        UpdateRejected: a value that is not finite, or a weight that is not or is below 0.
    """
    if not (np.isfinite(weight) and weight >= 0):
        raise UpdateRejected(f"{where}: '{name}' has weight {weight}, a finite one from 0 up expected")
    # The sum is finite when all terms are, and costs no array of flags.
    with np.errstate(invalid="ignore"):
        is_finite = np.isfinite(np.add.reduce(value, axis=None, dtype=np.float64))
    if not is_finite:
        raise UpdateRejected(f"{where}: '{name}' holds values that are not finite; lower its learning rate")

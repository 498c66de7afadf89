"""The weighted mean of the devices' tensors, streamed: float64 sums in the order given, one division at the end.

Every tensor keeps its own total weight, so a tensor that only some devices trained is the mean over those devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from coordinator.aggregation.parts import check_parts, weights_of
from coordinator.aggregation.summing import Term, WeightedSums, quotients

if TYPE_CHECKING:
    from coordinator.submodels.values import Tensors


class WeightedMean:
    """Sum of weight times tensor, by name; memory is one float64 copy of the model whatever the number of devices.

    Updates that are read-only are read after :meth:`add` has come back, up to :meth:`result`.
    """

    def __init__(self, reference: Tensors) -> None:
        """``reference``: the tensors aggregated into; gives names, shapes, dtypes, and the values of untouched ones."""
        self._reference = reference
        self._sums: dict[str, np.ndarray] = {}
        self._weights: dict[str, float] = {}
        self._terms = WeightedSums()

    def add(self, tensors: Tensors, weight: float | Mapping[str, float], *, where: str) -> None:
        """Add one device's tensors, all with one weight or each with its own.

        Either all of them are added or none.

        Args:
            where: who sent them, for the message.

        Raises:
            UpdateRejected: an unknown tensor, a wrong shape, values or a weight that are not finite.
        """
        weights = weights_of(tensors, weight)
        check_parts(self._reference, tensors, weights, {}, where=where)
        terms: list[Term] = []
        for name, value in tensors.items():
            if name in self._sums:
                terms.append((self._sums[name], value, weights[name]))
            else:
                self._sums[name] = np.asarray(np.multiply(value, weights[name], dtype=np.float64))
            self._weights[name] = self._weights.get(name, 0.0) + weights[name]
        self._terms.add(terms)

    def result(self) -> dict[str, np.ndarray]:
        """The means in the reference's dtypes (integers rounded); tensors nobody sent keep the reference's value."""
        self._terms.settle()
        held = [name for name in self._reference if self._weights.get(name, 0.0) > 0]
        means = quotients((self._sums[n], self._weights[n], self._reference[n].dtype) for n in held)
        return {**self._reference, **dict(zip(held, means, strict=True))}

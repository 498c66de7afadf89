"""What every aggregation rule offers a method: take one device's tensors after the other, then give the new ones.

A method builds an accumulator for the tensors it aggregates into and knows no rule; which one it is, a run file says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np

    from coordinator.submodels.narrowed import Slice
    from coordinator.submodels.values import Tensors


class Accumulator(Protocol):
    """Takes updates one at a time; memory O(model) however many there are."""

    def add(
        self,
        tensors: Tensors,
        weight: float | Mapping[str, float],
        *,
        where: str,
        slices: Mapping[str, Slice] | None = None,
        rows: Mapping[str, Collection[int]] | None = None,
    ) -> None:
        """Take one device's tensors; either all of them or none.

        Args:
            weight: of all tensors, or of each; one of weight 0 counts as not held.
            where: who sent them, for the message.
            slices: which entries of the reference a tensor holds; one that is not named is whole.
            rows: tensors of which only these rows count (a classifier's, of the labels the device owns), as indices
                into the reference.

        Raises:
            UpdateRejected: an unknown tensor, a wrong shape, values or a weight that are not finite.
        """

    def result(self) -> dict[str, np.ndarray]:
        """The new tensors in the reference's dtypes (integers rounded); entries nobody held keep their bits."""


Rule = Callable[["Tensors"], Accumulator]
"""From the tensors aggregated into, which give names, shapes, dtypes and the values of untouched entries."""

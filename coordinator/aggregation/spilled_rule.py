"""What rules that need all values of an entry share: they keep every update on disk, and differ in their result."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.aggregation.spilled_values import SpilledValues

if TYPE_CHECKING:
    from coordinator.methods.method import Tensors
    from coordinator.submodels.narrowed import Slice


class SpilledRule:
    """An accumulator but for its ``result``.

    Attributes:
        values: what was added.
    """

    def __init__(self, reference: Tensors, *, folder: Path | None = None) -> None:
        """``folder``: as :class:`~coordinator.aggregation.spilled_values.SpilledValues`."""
        self.values = SpilledValues(reference, folder)

    def add(
        self,
        tensors: Tensors,
        weight: float | Mapping[str, float],
        *,
        where: str,
        slices: Mapping[str, Slice] | None = None,
        rows: Mapping[str, Collection[int]] | None = None,
    ) -> None:
        """As :meth:`coordinator.aggregation.accumulator.Accumulator.add`."""
        self.values.add(tensors, weight, where=where, slices=slices, rows=rows)

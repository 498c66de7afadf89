"""What rules that need all values of an entry share: they keep every update on disk, and differ in their result."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from coordinator.aggregation.spilled_values import SpilledValues

if TYPE_CHECKING:
    from coordinator.submodels.narrowed import Slice
    from coordinator.submodels.values import Tensors


class SpilledRule:
    """An accumulator but for its ``result``.

    Attributes:
        values: what was added.
        takes_trim: its constructor takes ``trim``, the share of hostile devices or values.
        compares_models: it compares updates as wholes, so all have to start from one model.
    """

    takes_trim: ClassVar[bool] = False
    compares_models: ClassVar[bool] = False

    @staticmethod
    def least_updates(trim: float) -> int:
        """Updates from which it can leave at least one hostile device out."""
        return 3

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

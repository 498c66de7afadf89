"""The mean of updates none of which moves the model further than the cohort's median does.

An update's difference to the model aggregated into is scaled down to the median norm of the round's differences where
it is longer. Source: Sun et al., "Can you really backdoor federated learning?" (2019), norm thresholding, with the
median in place of a fixed threshold.

A norm here is the root of the mean square over the floating-point entries an update holds, so that cuts of different
sizes compare; for whole updates it is the norm but for one factor. Integer tensors are averaged as they are. Weights
are the method's: what a device claims of its examples is limited elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coordinator.aggregation.parts import place_of
from coordinator.aggregation.spilled_rule import SpilledRule
from coordinator.aggregation.spilled_values import put_entries
from coordinator.aggregation.summing import squared_difference

if TYPE_CHECKING:
    from coordinator.submodels.narrowed import Slice
    from coordinator.submodels.values import Tensors


class NormClip(SpilledRule):
    """The weighted mean per entry of clipped updates."""

    def __init__(self, reference: Tensors, *, folder: Path | None = None) -> None:
        """``folder``: as :class:`~coordinator.aggregation.spilled_values.SpilledValues`."""
        super().__init__(reference, folder=folder)
        self._norms: list[float] = []

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
        super().add(tensors, weight, where=where, slices=slices, rows=rows)
        held = self.values.devices[-1].offsets
        self._norms.append(self._norm({n: v for n, v in tensors.items() if n in held}, slices or {}, rows or {}))

    def result(self) -> dict[str, np.ndarray]:
        """The means; entries nobody held keep their bits."""
        scales = self._scales()
        result = {}
        for name, before in self.values.reference.items():
            holders = self.values.holders(name)
            if not holders:
                result[name] = before
                continue
            weights = np.array([self.values.devices[number].weights[name] for number in holders])
            is_clipped = before.dtype.kind == "f"
            scaled = weights * scales[holders] if is_clipped else weights
            flat = before.reshape(-1)
            after = flat.copy()
            for start, end, values in self.values.tiles(name, holders):
                origin = flat[start:end].astype(np.float64)
                total, moved = np.zeros(end - start), np.zeros(end - start)
                for row, weight, scale in zip(values, weights, scaled, strict=True):
                    lacks = np.isnan(row)
                    total += np.where(lacks, 0.0, weight)
                    moved += np.where(lacks, 0.0, scale * (row - origin))
                held = total > 0
                mean = origin + np.divide(moved, total, out=np.zeros(end - start), where=held)
                put_entries(after[start:end], mean, held)
            result[name] = after.reshape(before.shape)
        return result

    def _scales(self) -> np.ndarray:
        """What each update's difference is multiplied with."""
        norms = np.array(self._norms)
        known = norms[np.isfinite(norms)]
        limit = float(np.median(known)) if known.size else 0.0
        return np.array([1.0 if not norm > limit else limit / norm for norm in norms])

    def _norm(self, tensors: Tensors, slices: Mapping[str, Slice], rows: Mapping[str, Collection[int]]) -> float:
        """Root of the mean squared difference to the reference; NaN for an update that holds no floats."""
        squares, count = 0.0, 0
        for name, value in tensors.items():
            before = self.values.reference[name]
            if before.dtype.kind != "f":
                continue
            if name in slices or name in rows:
                place, owned = place_of(before.shape, slices.get(name), rows.get(name))
                before, value = before[place], value if owned is None else value[owned]
            squares += squared_difference(value, before)
            count += value.size
        return math.sqrt(squares / count) if count else math.nan

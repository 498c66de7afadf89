"""How far tensors are from torch in float64, and how far they may be: the measure of the parity gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

FACTOR = 10.0
"""Tolerance over torch float32's own error."""
FLOOR = 3.0e-6
"""Least own error assumed, 25 float32 roundings: on tiny tensors torch float32 can be exact by luck while a sum in
another order, as correct, is not."""
NEGLIGIBLE = 1e-4
"""Share of the largest tensor's maximum below which a tensor's own maximum no longer scales its error."""


@dataclass(frozen=True)
class Worst:
    """The largest error of a group of tensors: which one, how far, and what torch float32 loses at worst."""

    name: str
    error: float
    own: float

    @property
    def tolerance(self) -> float:
        return FACTOR * max(self.own, FLOOR)


def relative_errors(got: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Per tensor max|got - exact| / max(max|exact|, 1e-4 of the largest maximum over all tensors).

    A tensor that is missing, has another shape or is not finite has an infinite error.
    """
    peaks = {name: float(np.abs(value).max(initial=0.0)) for name, value in exact.items()}
    least = max(NEGLIGIBLE * max(peaks.values(), default=0.0), 1e-30)
    errors = {}
    for name, value in exact.items():
        candidate = got.get(name)
        if candidate is None or candidate.shape != value.shape or not np.isfinite(candidate).all():
            errors[name] = float("inf")
            continue
        difference = np.abs(candidate.astype(np.float64) - value).max(initial=0.0)
        errors[name] = float(difference) / max(peaks[name], least)
    return errors


def worst_error(
    got: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray], single: Mapping[str, np.ndarray]
) -> Worst:
    """The tensor that is furthest from ``exact``, beside the furthest of torch float32."""
    errors, own = relative_errors(got, exact), relative_errors(single, exact)
    name = max(errors, key=lambda n: errors[n])
    return Worst(name, errors[name], max(own.values()))

"""How far tensors are from torch in float64, and how far they may be: the measure of the parity gate."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edge.contracts.errors import ParityError

FACTOR = 10.0
"""Tolerance over torch float32's own error."""
FLOOR = 3.0e-6
"""Least own error assumed, 25 float32 roundings: on tiny tensors torch float32 can be exact by luck while a sum in
another order, as correct, is not."""
NEGLIGIBLE = 1e-4
"""Share of the largest tensor's maximum below which a tensor's own maximum no longer scales its error."""
NOTHING = 1e-10
"""Share of the largest tensor's maximum below which a float64 tensor is rounding alone: its true value is 0."""


class Disagreement(ParityError):
    """A tensor is further from torch float64 than it may be.

    Attributes:
        error: how far.
    """

    def __init__(self, message: str, *, error: float, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.error = error


@dataclass(frozen=True)
class Worst:
    """The tensor of a group that is furthest beyond, or nearest to, what it may be off.

    Attributes:
        error, own: how far it is, and how far torch float32 is: its own error or that usual in the group.
        tolerance: how far it may be.
    """

    name: str
    error: float
    own: float
    tolerance: float


def relative_errors(got: Mapping[str, np.ndarray], exact: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Per tensor max|got - exact| / max(max|exact|, 1e-4 of the largest maximum over all tensors).

    A tensor that is missing, has another shape or is not finite has an infinite error.
    """
    peaks = {name: _peak(value) for name, value in exact.items()}
    least = max(NEGLIGIBLE * max(peaks.values(), default=0.0), 1e-30)
    errors = {}
    for name, value in exact.items():
        candidate = got.get(name)
        if candidate is None or candidate.shape != value.shape or not np.isfinite(candidate).all():
            errors[name] = float("inf")
            continue
        errors[name] = _peak(candidate.astype(np.float64) - value) / max(peaks[name], least)
    return errors


def worst_error(
    got: Mapping[str, np.ndarray],
    exact: Mapping[str, np.ndarray],
    single: Mapping[str, np.ndarray],
    noise: float = 0.0,
) -> Worst:
    """The tensor that is worst beside torch float32's own error (``single``).

    A tensor may be off by ten times what torch float32 loses on it or on the median tensor, whichever is more: where a
    gradient is 0 but for rounding, as that of a bias under a batch norm, its own error says nothing of the others.

    Args:
        noise: an error of torch float32 that is usual where it is small here by luck.
    """
    errors, own = relative_errors(got, exact), relative_errors(single, exact)
    usual = max(statistics.median(own[name] for name in exact.keys() - vanishing(exact)), noise)
    allowed = {name: FACTOR * max(own[name], usual, FLOOR) for name in errors}
    name = max(errors, key=lambda n: errors[n] / allowed[n])
    return Worst(name, errors[name], max(own[name], usual), allowed[name])


def vanishing(exact: Mapping[str, np.ndarray]) -> set[str]:
    """Names of tensors that are 0 but for float64's rounding, as the gradient of a bias right before a batch norm is.

    Whatever float32 makes of one is rounding, and tells nothing of how it computes the others.
    """
    peaks = {name: _peak(value) for name, value in exact.items()}
    largest = max(peaks.values(), default=0.0)
    return {name for name, peak in peaks.items() if peak <= NOTHING * largest} if largest else set()


def _peak(value: np.ndarray) -> float:
    """The largest size of an entry, without an array of sizes."""
    return max(float(value.max(initial=0.0)), -float(value.min(initial=0.0)))

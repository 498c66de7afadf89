"""An axis: bounds and marks at round numbers, and how its numbers are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

DECADES = 2.0
"""Values that span more powers of ten than this are drawn on a logarithmic axis, where all are above 0."""


@dataclass(frozen=True)
class Axis:
    """One axis of a plot.

    Attributes:
        low, high: what its ends stand for.
        marks: values with a gridline and a number.
    """

    low: float
    high: float
    marks: tuple[float, ...]
    is_log: bool = False

    def share(self, value: float) -> float:
        """Where ``value`` is, 0 at the low end and 1 at the high one."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.is_log else (self.low, self.high)
        at = math.log10(value) if self.is_log else value
        return (at - low) / (high - low)

    def label(self, value: float) -> str:
        """A mark's number, with as many digits as tell it from its neighbours."""
        if self.is_log:
            return f"{value:g}"
        step = self.marks[1] - self.marks[0] if len(self.marks) > 1 else self.high - self.low
        exact = (n for n in range(12) if all(abs(round(mark, n) - mark) < 1e-3 * step for mark in self.marks))
        return f"{value:,.{next(exact, 12)}f}"


def axis_of(
    values: Sequence[float], *, from_zero: bool = False, is_whole: bool = False, marks: int = 5, may_log: bool = False
) -> Axis:
    """The axis that ``values`` fit on.

    Args:
        values: finite, at least one.
        from_zero: amounts, whose length says something; else the axis spans the values and a little more.
        is_whole: marks at whole numbers only, and the ends at the first and the last value, such as rounds.
        marks: about how many.
        may_log: a logarithmic axis where the values span more than :data:`DECADES`.
    """
    low, high = min(values), max(values)
    if may_log and low > 0 and math.log10(high / low) > DECADES:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        return Axis(10.0**first, 10.0**last, tuple(10.0**power for power in range(first, last + 1)), is_log=True)
    if from_zero:
        low = min(0.0, low)
    if high - low < 1e-12 * max(1.0, abs(high)):  # one value
        margin = 1.0 if is_whole else max(abs(high) * 0.1, 1e-6)
        low, high = (low, high + margin) if from_zero or is_whole else (low - margin, high + margin)
    step = _round_step((high - low) / max(1, marks - 1))
    if is_whole:
        step = max(1.0, step)
        begin = math.ceil(low / step) * step
        at = [begin + step * i for i in range(int((high - begin) / step + 1e-9) + 1)]
        # The first round is marked where its number does not touch the next one.
        return Axis(low, high, (low, *at) if at and at[0] - low >= 0.7 * step else tuple(at))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(first * step, last * step, tuple(step * i for i in range(first, last + 1)))


def _round_step(step: float) -> float:
    """The next step of 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if step <= factor * power * (1 + 1e-9))

"""How many weights to keep, chosen online: steps on k by the sign of a cost difference, in a range that closes in.

The cost of a size is the time of a round for what the round gained: T(k) against T(k') scaled to the gain of k. All
values are counts of weights; where a step ends between two of them a draw decides, in proportion.
Source: Han et al., "Adaptive gradient sparsification for efficient federated learning: an online learning approach"
(ICDCS 2020), sign form, with the constants of PruneFL's published baseline.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace

import numpy as np

LEAST_SHARE = 0.002
"""k is at least this share of the prunable weights; the smaller size k' at least a tenth of the range's lower end."""
FIRST_LESSER_SHARE = 0.9
LESSER_SHARE = 0.1
WAITS = 10
"""Rounds in a row without a usable comparison in which k stays; the next such round raises it."""
WINDOW = 20
"""Updates after which the range may close in, to the sizes visited in the meantime and half as much beyond."""
WIDER = 1.5


@dataclass(frozen=True)
class SizeControl:
    """The controller between two rounds, whole numbers all of them.

    Attributes:
        total: prunable weights, D.
        size, lesser: weights kept, k, and the smaller size it is compared with, k'.
        low, high: the range of k at present.
        time: rounds controlled so far, t; ``began``: where the present range began, t_0.
        epoch: how long the range before lasted.
        waited: rounds in a row in which there was nothing to compare.
        updates: of the present window; ``window_low``, ``window_high``: smallest and largest size in it.
    """

    total: int
    size: int
    lesser: int
    low: int
    high: int
    time: int
    began: int
    epoch: int
    waited: int
    updates: int
    window_low: int
    window_high: int

    @classmethod
    def first(cls, total: int) -> SizeControl:
        """Everything kept, compared with nine tenths."""
        low = _least(total)
        lesser = min(math.ceil(FIRST_LESSER_SHARE * total), total - 1)
        return cls(total, total, lesser, low, total, 0, 0, 0, 0, 0, total, low)

    @classmethod
    def from_array(cls, values: np.ndarray) -> SizeControl:
        """What :meth:`to_array` wrote."""
        return cls(*(int(value) for value in values))

    def to_array(self) -> np.ndarray:
        """int64 [attributes], for a state."""
        return np.array(astuple(self), np.int64)

    def after(self, cost: float, lesser_cost: float | None, draws: tuple[float, float]) -> SizeControl:
        """The controller after a round.

        Args:
            cost, lesser_cost: of k and of k'; None where one of the two losses did not fall.
            draws: two uniform numbers in [0, 1), for the two roundings.
        """
        time = self.time + 1
        step = (self.high - self.low) / math.sqrt(2 * (time - self.began))
        waited, size, is_update = 0, float(self.size), True
        if lesser_cost is not None:
            size -= step * float(np.sign((cost - lesser_cost) / (self.size - self.lesser)))
        elif self.waited < WAITS:
            waited, is_update = self.waited + 1, False
        else:
            size += step
        new = min(max(_rounded(size, draws[0]), self.low), self.high)
        lesser = max(_rounded(new - step / 2, draws[1]), math.ceil(LESSER_SHARE * self.low))
        moved = replace(self, size=new, lesser=min(lesser, new - 1), time=time, waited=waited)
        return moved._counted() if is_update else moved

    def _counted(self) -> SizeControl:
        """After an update: the window holds its size, and a full one may close the range in."""
        low, high = min(self.window_low, self.size), max(self.window_high, self.size)
        if self.updates + 1 < WINDOW:
            return replace(self, updates=self.updates + 1, window_low=low, window_high=high)
        emptied = replace(self, updates=0, window_low=self.total, window_high=_least(self.total))
        new_low = max(round(low / WIDER), _least(self.total))
        new_high = min(round(high * WIDER), self.total)
        lasted = self.time - self.began
        is_much_smaller = 0 < new_high - new_low <= (math.sqrt(2) - 1) * (self.high - self.low)
        if not is_much_smaller or lasted < self.epoch:
            return emptied
        return replace(emptied, low=new_low, high=new_high, began=self.time, epoch=lasted)


def _least(total: int) -> int:
    """Lower end of the first range; two, so that there is a smaller size to compare with."""
    return max(2, round(LEAST_SHARE * total))


def _rounded(value: float, draw: float) -> int:
    """The whole number below or above, above with the probability of the fraction."""
    below = math.floor(value)
    return below + (draw < value - below)

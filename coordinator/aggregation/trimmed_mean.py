"""The entry-wise mean without the largest and the smallest values, of the devices that hold an entry, weighed alike.

Source: Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates" (ICML 2018), option II:
a share beta of the values is left out at each end. Here the share is of the entry's own holders, so cuts that few
devices hold are trimmed by their few, rounded down. An entry with so few holders that none would be left out keeps its
bits.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coordinator.aggregation.spilled_rule import SpilledRule

if TYPE_CHECKING:
    from coordinator.submodels.values import Tensors

LEAST = 3
"""Holders of an entry from which there is anything to leave out."""


class TrimmedMean(SpilledRule):
    """The mean of each entry's middle values."""

    takes_trim = True

    def __init__(self, reference: Tensors, *, trim: float, folder: Path | None = None) -> None:
        """``trim``: beta, below 1/2; ``folder``: as :class:`~coordinator.aggregation.spilled_values.SpilledValues`."""
        super().__init__(reference, folder=folder)
        self._trim = trim

    @staticmethod
    def least_updates(trim: float) -> int:
        """As :meth:`SpilledRule.least_updates`: the share of so many is one at each end."""
        return least_of_share(trim, LEAST) if trim else 1

    def result(self) -> dict[str, np.ndarray]:
        """The trimmed means; entries that too few held keep their bits."""
        least = self.least_updates(self._trim)
        return self.values.combined(functools.partial(middle_mean, trim=self._trim), least=least)


def middle_mean(rising: np.ndarray, counts: np.ndarray, *, trim: float) -> np.ndarray:
    """The mean [entries] of the values without a share ``trim`` of them at each end, in float64.

    Args:
        rising: [entries, devices], NaN last.
        counts: [entries], values that are not NaN.
    """
    found = np.zeros(len(rising))
    for count in np.unique(counts):
        if count == 0:
            continue
        entries = counts == count
        left_out = dropped(int(count), trim)
        found[entries] = rising[entries, left_out : int(count) - left_out].mean(axis=1, dtype=np.float64)
    return found


def dropped(count: int, trim: float) -> int:
    """Of ``count`` values, how many a share ``trim`` is, rounded down; none of fewer than three."""
    # 0.29 x 100 is a little less than 29.
    return int(trim * count + 1e-9) if count >= LEAST else 0


def least_of_share(trim: float, least: int) -> int:
    """The fewest values, ``least`` or more, of which a share ``trim`` is one."""
    return next((n for n in range(least, 1000) if int(trim * n + 1e-9)), 1000)

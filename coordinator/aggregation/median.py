"""The entry-wise median over the devices that hold an entry; each device counts alike, whatever examples it claims.

Half of the holders of an entry, less one, can send anything without moving it beyond what the others sent; an entry
that fewer than three hold keeps its bits.
Source: Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates" (ICML 2018), option I.
"""

from __future__ import annotations

import numpy as np

from coordinator.aggregation.spilled_rule import SpilledRule


class EntrywiseMedian(SpilledRule):
    """The middle value of each entry, the mean of the middle two for an even number of holders."""

    def result(self) -> dict[str, np.ndarray]:
        """The medians; entries that too few held keep their bits."""
        return self.values.combined(_median, least=self.least_updates(0.0))


def _median(rising: np.ndarray, counts: np.ndarray) -> np.ndarray:
    below = np.maximum(counts - 1, 0) // 2
    above = np.minimum(counts // 2, rising.shape[1] - 1)
    middle = np.take_along_axis(rising, np.stack([below, above], axis=1), axis=1)
    return middle.mean(axis=1, dtype=np.float64)

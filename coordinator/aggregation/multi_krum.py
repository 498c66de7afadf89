"""Multi-Krum: the mean of the updates that Krum ranks first, n - f - 2 of n; slower to be steered than their winner.

Source: Blanchard et al. (NeurIPS 2017), section 4; the number that can be taken without giving up the rule's promise is
n - f - 2 (El Mhamdi et al., "The hidden vulnerability of distributed learning in Byzantium", ICML 2018).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.aggregation.krum import Krum, hostile

if TYPE_CHECKING:
    import numpy as np


class MultiKrum(Krum):
    """As :class:`~coordinator.aggregation.krum.Krum`, with more than one winner; each entry is the mean over those of
    them that hold it, weighed alike."""

    def result(self) -> dict[str, np.ndarray]:
        """The mean of the best; entries none of them holds keep their bits."""
        return self.mean_of_best(max(1, self.count - hostile(self.count, self.trim) - 2))

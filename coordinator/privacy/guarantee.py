"""What a masked cohort stands: how many devices may collude, and how many honest updates a sum has then.

Let N be ``$.cohort.size`` and T the number of devices that take masks off. As long as fewer than T of the devices that
are let in collude, with one another and with whoever carries messages,

- no mask comes off a single update: T shares are needed;
- every sum that is unmasked has at least h updates of others: it is of T - 1 + h devices or more, whoever is kept away.

Both are counted from the size that the run file names and not from the devices that are here: whoever carries messages
decides who is here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from coordinator.config.privacy import PrivacyConfig

LEAST = 3
"""Devices of a masked sum: of two, each knows the other's update from the sum and its own."""


class Guarantee(NamedTuple):
    """That of a cohort.

    Attributes:
        size: devices of the cohort, N.
        threshold: devices that take masks off, T: fewer may collude.
        honest: updates of others in every sum, h, at least.
    """

    size: int
    threshold: int
    honest: int

    @property
    def reports(self) -> int:
        """Devices of a sum, at least."""
        return max(LEAST, self.threshold - 1 + self.honest)

    @property
    def missing(self) -> int:
        """Devices of the cohort that may be missing from a sum; below zero where none can be made."""
        return self.size - self.reports

    def without(self, liars: int) -> Guarantee:
        """That among the others, once so many of those that collude are named and take part no more."""
        return self._replace(threshold=max(2, self.threshold - liars))

    def threshold_among(self, count: int) -> int:
        """How many of a roster of ``count`` devices take masks off: more than half, else two halves would do it."""
        return max(self.threshold, count // 2 + 1)


def guarantee_of(privacy: PrivacyConfig, size: int) -> Guarantee:
    """That of cohorts of ``size`` devices.

    Unless the run file says how many honest updates a sum has to have, half of the devices that could be missing
    without them are given up for it: of 20 devices of which 14 take masks off, 4 may be missing and not 6, and 3 are
    honest.
    """
    threshold = max(2, size // 2 + 1, math.ceil(privacy.recovery_share * size - 1e-9))
    return Guarantee(size, threshold, privacy.least_honest or max(1, (size - threshold + 1) // 2))

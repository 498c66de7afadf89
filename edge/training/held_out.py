"""Which of a device's examples are held out: drawn once by a keyed stream, and the same however the data grows.

The examples are cut into strata of ``1 / share`` in their order, stratum j from ``ceil(j / share)`` on. Of each, the
one at ``floor(u[j] * length)`` is held out, with u = uniform(seed, strata). So a folder of classes one after the other
has its share of every class held out, and an example that is trained on once is never held out later: what is appended
changes nothing before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from edge.contracts.errors import DeviceRefused
from edge.contracts.evaluation import HeldOut
from edge.contracts.streams import uniform
from edge.training.batches import Examples


@dataclass(frozen=True)
class SplitExamples:
    """A device's examples in two parts.

    Attributes:
        trained: those that steps may see.
        held_out: those that none ever does.
    """

    trained: Examples
    held_out: Examples


def split(examples: Examples, rule: HeldOut) -> SplitExamples:
    """The two parts of ``examples``.

    Raises:
        DeviceRefused: nothing is left to train on, or a share that is none.
    """
    if not 0.0 < rule.share <= 0.5:
        raise DeviceRefused(f"the order holds out {rule.share} of the examples; order a share above 0, at most 0.5")
    rows = held_out_rows(len(examples), rule)
    others = np.setdiff1d(np.arange(len(examples)), rows, assume_unique=True)
    if not len(others):
        raise DeviceRefused(
            f"of {len(examples)} examples {len(rows)} are held out and none is left to train on; add examples"
        )
    return SplitExamples(examples.part(others), examples.part(rows))


def held_out_rows(examples: int, rule: HeldOut) -> np.ndarray:
    """Places of the held-out ones among so many ``examples``, rising, int64."""
    strata = math.floor(examples * rule.share) + 1
    starts = np.array([math.ceil(j / rule.share) for j in range(strata + 1)], np.int64)
    rows = starts[:-1] + np.floor(uniform(rule.seed, strata) * np.diff(starts)).astype(np.int64)
    return np.asarray(rows[rows < examples])

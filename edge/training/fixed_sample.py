"""The sample of a device's examples that an order says is trained on: the same in every order with its seed.

It is the first ``size`` places of a Fisher-Yates shuffle, in rising order. Examples that are held out are none of those
it is drawn from. A device whose examples change in number draws another.
"""

from __future__ import annotations

import numpy as np

from edge.contracts.errors import DeviceRefused
from edge.contracts.fixed_sample import FixedSample
from edge.contracts.streams import permutation
from edge.training.batches import Examples


def sampled(examples: Examples, rule: FixedSample) -> Examples:
    """The sample, or ``examples`` where there are no more of them.

    Raises:
        DeviceRefused: a sample of no examples.
    """
    if rule.size < 1:
        raise DeviceRefused(f"the order trains on a sample of {rule.size} examples; order at least 1")
    return examples if rule.size >= len(examples) else examples.part(sample_rows(len(examples), rule))


def sample_rows(examples: int, rule: FixedSample) -> np.ndarray:
    """Places of the sample among so many ``examples``, rising, int64."""
    return np.sort(permutation(rule.seed, examples)[: rule.size])

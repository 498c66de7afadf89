"""Static statistics of normalisation layers: the mean, over devices, of what their ``stats`` programs gathered.

Source: sBN of HeteroFL (Diao et al., ICLR 2021), gathered on the devices' own data and averaged by num_examples.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from coordinator.methods.method import KeepsStatistics, Method, State, Update


def state_with_statistics(method: Method, state: State, updates: Iterable[Update]) -> State:
    """The state with the static statistics that devices gathered; a method may keep them in its own way."""
    if isinstance(method, KeepsStatistics):
        return method.with_statistics(state, updates)
    return replace(state, tensors={**state.tensors, **mean_statistics(updates)})


def mean_statistics(updates: Iterable[Update]) -> dict[str, np.ndarray]:
    """Buffer name -> num_examples-weighted mean, float64 sums in the order given; integer buffers from the first."""
    sums: dict[str, np.ndarray] = {}
    weights: dict[str, float] = {}
    first: dict[str, np.ndarray] = {}
    for update in updates:
        for name, value in update.tensors.items():
            first.setdefault(name, np.array(value))
            if value.dtype.kind == "f":
                sums[name] = sums.get(name, 0.0) + value.astype(np.float64) * update.num_examples
                weights[name] = weights.get(name, 0.0) + update.num_examples
    means = {name: (total / weights[name]).astype(first[name].dtype) for name, total in sums.items()}
    return {name: means.get(name, value) for name, value in first.items()}

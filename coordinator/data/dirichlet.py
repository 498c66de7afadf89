"""The three papers' Dirichlet splits over classes; they are different procedures and give different federations.

All of them end with devices of equal size, give or take one example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edge.contracts.errors import ConfigError
from edge.contracts.streams import permutation, stream_seed

if TYPE_CHECKING:
    import numpy as np

GROUP = 10
"""Devices that FedHM's split deals to at a time."""

REDRAWS = 10_000
"""Draws after which a group that stays too uneven is given up; the reference code goes on for ever."""


def dirichlet_equal(labels: np.ndarray, devices: int, *, alpha: float, seed: int) -> list[np.ndarray]:
    """Per device one draw of its mix of classes from Dirichlet(alpha); all devices get the same number of examples.

    A device takes from the classes that are left when one of its own is used up.
    Source: PriSM, reference code: "LDA partition" that accepts no imbalance.
    """
    import numpy as np

    classes, positions = np.unique(labels, return_inverse=True)
    pools = []
    for index, label in enumerate(classes):
        examples = np.flatnonzero(positions == index)
        pools.append(examples[permutation(stream_seed(seed, f"partition-order-{label}"), len(examples))].tolist())
    shares: list[list[int]] = []
    for device in range(devices):
        generator = np.random.Generator(np.random.PCG64(stream_seed(seed, "partition-mix", 0, str(device))))
        mix = generator.dirichlet(np.full(len(classes), alpha))
        needed = len(labels) // devices + (device < len(labels) % devices)
        share: list[int] = []
        while len(share) < needed:
            left = np.array([len(pool) for pool in pools])
            # A tiny floor keeps a mix usable whose classes are all used up.
            weights = np.where(left > 0, mix + 1e-12, 0.0)
            counts = generator.multinomial(needed - len(share), weights / weights.sum())
            for pool, count in zip(pools, np.minimum(counts, left).tolist(), strict=True):
                share.extend(pool[len(pool) - count :])
                del pool[len(pool) - count :]
        shares.append(share)
    return sorted_shares(shares)


def dirichlet_groups(labels: np.ndarray, devices: int, *, alpha: float, seed: int) -> list[np.ndarray]:
    """Devices in groups of ten, each over its own part of the shuffled examples; then equal slices of the whole.

    In a group every class is dealt by one Dirichlet draw over its devices, one that has its fair share already gets
    nothing, and all is drawn again until the smallest has half of a fair share. The slices that follow move borders a
    little.
    Source: FedHM, reference code, ``partition_data.py``.

    Raises:
        ConfigError: no draw was even enough.
    """
    import numpy as np

    order = permutation(stream_seed(seed, "partition-groups"), len(labels))
    dealt: list[int] = []
    groups = math.ceil(devices / GROUP)
    each = int(GROUP / devices * len(labels))
    for group in range(groups):
        members = min(GROUP, devices - group * GROUP)
        examples = order[group * each : None if group == groups - 1 else (group + 1) * each]
        generator = np.random.Generator(np.random.PCG64(stream_seed(seed, f"partition-group-{group}")))
        dealt += [index for share in _even_group(labels, examples, members, alpha, generator) for index in share]
    return sorted_shares([part.tolist() for part in np.array_split(np.array(dealt), devices)])


def _even_group(
    labels: np.ndarray, examples: np.ndarray, members: int, alpha: float, generator: np.random.Generator
) -> list[list[int]]:
    import numpy as np

    fair = len(examples) / members
    for _ in range(REDRAWS):
        shares: list[list[int]] = [[] for _ in range(members)]
        for label in np.unique(labels[examples]):
            own = examples[labels[examples] == label]
            drawn = generator.dirichlet(np.full(members, alpha))
            proportions = np.where([len(share) < fair for share in shares], drawn, 0.0)
            if not proportions.sum():
                break  # every device that still takes examples drew none
            borders = (np.cumsum(proportions / proportions.sum()) * len(own)).astype(int)[:-1]
            for share, part in zip(shares, np.split(own, borders), strict=True):
                share.extend(part.tolist())
        if sum(map(len, shares)) == len(examples) and min(map(len, shares)) >= int(fair / 2):
            return shares
    raise ConfigError(
        [
            f"$.data.alpha: {alpha:g} gave no split of {len(examples)} examples in which each of {members} devices has "
            "half of its share; raise it, or use another partition"
        ]
    )


def dirichlet_multinomial(labels: np.ndarray, devices: int, *, alpha: float, seed: int) -> list[np.ndarray]:
    """Per class a Dirichlet draw over all devices and multinomial counts; device after device, then equal slices.

    Source: SLT, reference code, ``utils/split.py``; the slices are not exactly what was drawn.
    """
    import numpy as np

    shares: list[list[int]] = [[] for _ in range(devices)]
    for label in np.unique(labels):
        generator = np.random.Generator(np.random.PCG64(stream_seed(seed, f"partition-multinomial-{label}")))
        own = np.flatnonzero(labels == label)
        own = own[permutation(stream_seed(seed, f"partition-order-{label}"), len(own))]
        counts = generator.multinomial(len(own), generator.dirichlet(np.full(devices, alpha)))
        for share, part in zip(shares, np.split(own, np.cumsum(counts)[:-1]), strict=True):
            share.extend(part.tolist())
    dealt = np.array([index for share in shares for index in share])
    return sorted_shares([part.tolist() for part in np.array_split(dealt, devices)])


def sorted_shares(shares: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """One sorted index array per device."""
    import numpy as np

    return [np.sort(np.array(share, np.int64)) for share in shares]

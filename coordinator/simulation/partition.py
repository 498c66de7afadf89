"""How the examples of one dataset are dealt to simulated or local devices. Real devices bring their own data.

A partition gives one sorted index array per device, in device order; no example is dealt twice. All draws come from
streams keyed by the run's seed, so the same seed deals the same examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edge.contracts.errors import ConfigError
from edge.contracts.streams import permutation, stream_seed

if TYPE_CHECKING:
    import numpy as np

KINDS = ("iid", "dirichlet", "writer")


def partition(
    kind: str,
    labels: np.ndarray,
    devices: int,
    *,
    seed: int,
    alpha: float = 0.5,
    owners: np.ndarray | None = None,
    minimum: int = 1,
    equal: bool = False,
) -> list[np.ndarray]:
    """Example indices of each device, int64.

    Args:
        kind: ``iid``, ``dirichlet`` or ``writer``.
        labels: class of every example, [n].
        alpha: of ``dirichlet``; small values give devices few classes.
        owners: who wrote each example, [n]; ``writer`` gives each device one of them.
        minimum: of ``dirichlet``: examples every device gets at least.
        equal: of ``dirichlet``: every device gets the same number of examples, give or take one.

    Raises:
        ConfigError: an unknown kind, or what the dataset cannot give.
    """
    if devices < 1:
        raise ConfigError([f"$.cohort.local: {devices} devices to deal data to, at least 1 expected"])
    if kind == "iid":
        _require(len(labels), devices, minimum)
        return iid(len(labels), devices, seed=seed)
    if kind == "dirichlet":
        _require(len(labels), devices, minimum)
        if not 0 < alpha < float("inf"):
            raise ConfigError([f"$.data.alpha: {alpha} given, a finite number above 0 expected"])
        deal = dirichlet_equal if equal else dirichlet
        return deal(labels, devices, alpha=alpha, seed=seed, minimum=minimum)
    if kind == "writer":
        if owners is None:
            raise ConfigError(["$.data.partition: 'writer' needs to know who wrote each example; use iid or dirichlet"])
        return by_writer(owners, devices)
    raise ConfigError([f"$.data.partition: unknown partition '{kind}'; known: {', '.join(KINDS)}"])


def iid(count: int, devices: int, *, seed: int) -> list[np.ndarray]:
    """Shuffled examples in shares of equal size, give or take one."""
    import numpy as np

    order = permutation(stream_seed(seed, "partition-iid"), count)
    return [np.sort(share) for share in np.array_split(order, devices)]


def dirichlet(labels: np.ndarray, devices: int, *, alpha: float, seed: int, minimum: int = 1) -> list[np.ndarray]:
    """Per class one draw of shares over the devices from Dirichlet(alpha).

    A device short of ``minimum`` gets examples from whichever device has most.
    Source: Hsu et al., "Measuring the effects of non-identical data distribution"; Li et al., NIID-Bench, for the draw
    per class.
    """
    import numpy as np

    shares: list[list[int]] = [[] for _ in range(devices)]
    for label in np.unique(labels):
        generator = np.random.Generator(np.random.PCG64(stream_seed(seed, f"partition-dirichlet-{label}")))
        examples = np.flatnonzero(labels == label)
        examples = examples[permutation(stream_seed(seed, f"partition-order-{label}"), len(examples))]
        borders = np.cumsum(generator.dirichlet(np.full(devices, alpha)))[:-1] * len(examples)
        for share, part in zip(shares, np.split(examples, np.rint(borders).astype(int)), strict=True):
            share.extend(part.tolist())
    while min(map(len, shares)) < minimum:
        richest = max(range(devices), key=lambda d: len(shares[d]))
        poorest = min(range(devices), key=lambda d: len(shares[d]))
        shares[poorest].append(shares[richest].pop())
    return _sorted(shares)


def dirichlet_equal(labels: np.ndarray, devices: int, *, alpha: float, seed: int, minimum: int = 1) -> list[np.ndarray]:
    """Per device one draw of its mix of classes from Dirichlet(alpha); all devices get the same number of examples.

    A device takes from the classes that are left when one of its own is used up. ``minimum`` is met by equality.
    Source: PriSM's split, "LDA partition" with balanced sizes.
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
    return _sorted(shares)


def by_writer(owners: np.ndarray, devices: int) -> list[np.ndarray]:
    """One writer per device, all of its examples, lowest ids first; examples of further writers are not dealt.

    Raises:
        ConfigError: fewer writers than devices.
    """
    import numpy as np

    writers = np.unique(owners)
    if len(writers) < devices:
        raise ConfigError(
            [f"$.data.partition: {len(writers)} writers for {devices} devices; start at most {len(writers)} devices"]
        )
    return [np.flatnonzero(owners == writer) for writer in writers[:devices]]


def _require(count: int, devices: int, minimum: int) -> None:
    if count < devices * max(minimum, 1):
        raise ConfigError(
            [f"$.data: {count} examples for {devices} devices of at least {max(minimum, 1)}; start fewer devices"]
        )


def _sorted(shares: Sequence[Sequence[int]]) -> list[np.ndarray]:
    import numpy as np

    return [np.sort(np.array(share, np.int64)) for share in shares]

"""How the examples of one dataset are dealt to simulated or local devices. Real devices bring their own data.

A partition gives one sorted index array per device, in device order; no example is dealt twice. All draws come from
streams keyed by the run's seed, so the same seed deals the same examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.data.dirichlet import dirichlet_equal, dirichlet_groups, dirichlet_multinomial, sorted_shares
from edge.contracts.errors import ConfigError
from edge.contracts.streams import permutation, stream_seed
from edge.training.records import Y, entry, names_of

if TYPE_CHECKING:
    import numpy as np

KINDS = (
    "iid",
    "file-order",
    "dirichlet",
    "dirichlet-equal",
    "dirichlet-groups",
    "dirichlet-multinomial",
    "writer",
    "writer-groups",
)


def partition(
    kind: str,
    labels: np.ndarray,
    devices: int,
    *,
    seed: int,
    alpha: float = 0.5,
    owners: np.ndarray | None = None,
    minimum: int = 1,
) -> list[np.ndarray]:
    """Example indices of each device, int64.

    Args:
        kind: one of :data:`KINDS`.
        labels: class of every example, [n].
        alpha: of the ``dirichlet`` kinds; small values give devices few classes.
        owners: who wrote each example, [n]; for ``writer`` and ``writer-groups``.
        minimum: of ``dirichlet``: examples every device gets at least.

    Raises:
        ConfigError: an unknown kind, or what the dataset cannot give.
    """
    if devices < 1:
        raise ConfigError([f"$.cohort.local: {devices} devices to deal data to, at least 1 expected"])
    if kind not in KINDS:
        raise ConfigError([f"$.data.partition: unknown partition '{kind}'; known: {', '.join(KINDS)}"])
    if kind.startswith("writer"):
        if owners is None:
            raise ConfigError(
                [f"$.data.partition: '{kind}' needs to know who wrote each example; use iid or dirichlet"]
            )
        return by_writer(owners, devices) if kind == "writer" else writer_groups(owners, devices)
    _require(len(labels), devices, minimum)
    if kind == "iid":
        return iid(len(labels), devices, seed=seed)
    if kind == "file-order":
        return file_order(len(labels), devices)
    if not 0 < alpha < float("inf"):
        raise ConfigError([f"$.data.alpha: {alpha} given, a finite number above 0 expected"])
    if kind == "dirichlet":
        return dirichlet(labels, devices, alpha=alpha, seed=seed, minimum=minimum)
    deal = {
        "dirichlet-equal": dirichlet_equal,
        "dirichlet-groups": dirichlet_groups,
        "dirichlet-multinomial": dirichlet_multinomial,
    }[kind]
    return deal(labels, devices, alpha=alpha, seed=seed)


def partition_labels(kind: str, y: np.ndarray) -> np.ndarray:
    """What ``kind`` deals examples by: the class of each, or just their number, of examples that have other targets.

    Raises:
        ConfigError: it deals by classes, and the examples have no class each.
    """
    labels = entry(y, Y) if Y in names_of(y) else y
    if kind.startswith("dirichlet") and (labels.ndim != 1 or labels.dtype.kind not in "iuUSb"):
        raise ConfigError([f"$.data.partition: '{kind}' deals by the class of each example, and these have none; iid"])
    return labels


def iid(count: int, devices: int, *, seed: int) -> list[np.ndarray]:
    """Shuffled examples in shares of equal size, give or take one."""
    import numpy as np

    order = permutation(stream_seed(seed, "partition-iid"), count)
    return [np.sort(share) for share in np.array_split(order, devices)]


def file_order(count: int, devices: int) -> list[np.ndarray]:
    """Consecutive slices of the file, not shuffled, of equal size, give or take one. Source: FedHM's "IID"."""
    import numpy as np

    return [share.astype(np.int64) for share in np.array_split(np.arange(count), devices)]


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
    return sorted_shares(shares)


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


def writer_groups(owners: np.ndarray, devices: int) -> list[np.ndarray]:
    """Every writer dealt: as many to each device, in the order of their ids, the last one takes those left over.

    Source: PruneFL: 193 writers on ten devices are nine times 19 and once 22.

    Raises:
        ConfigError: fewer writers than devices.
    """
    import numpy as np

    writers = np.unique(owners)
    each = len(writers) // devices
    if not each:
        raise ConfigError(
            [f"$.data.partition: {len(writers)} writers for {devices} devices; start at most {len(writers)} devices"]
        )
    device_of = np.minimum(np.searchsorted(writers, owners) // each, devices - 1)
    return [np.flatnonzero(device_of == device) for device in range(devices)]


def _require(count: int, devices: int, minimum: int) -> None:
    if count < devices * max(minimum, 1):
        raise ConfigError(
            [f"$.data: {count} examples for {devices} devices of at least {max(minimum, 1)}; start fewer devices"]
        )

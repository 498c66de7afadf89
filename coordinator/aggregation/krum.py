"""Krum: the one update that is closest to most others; hostile ones are far from them, or do no harm.

Of n updates f are taken for hostile. An update's score is the sum of its squared distances to its n - f - 2 closest;
the lowest score wins. Source: Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient
descent" (NeurIPS 2017).

With cuts, this project's reading: two updates are compared on the entries both hold, their squared distance divided by
the number of those; pairs without common entries are left out, and a score is the mean of the distances that are there.
An update without a common entry with any other comes last. Entries that fewer devices hold than the rule needs are
neither compared nor taken: whoever is alone with one would have the only say. The new model has the winner's values
where it holds any, all others keep their bits. Weights do not count: they come from what devices say of themselves.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coordinator.aggregation.spilled_rule import SpilledRule
from coordinator.aggregation.spilled_values import TILE_BYTES, SpilledValues
from coordinator.aggregation.trimmed_mean import least_of_share, middle_mean

if TYPE_CHECKING:
    from coordinator.submodels.values import Tensors


class Krum(SpilledRule):
    """The winner's tensors; memory O(model) and two float64 matrices [devices, devices]."""

    takes_trim = True
    compares_models = True

    def __init__(self, reference: Tensors, *, trim: float, folder: Path | None = None) -> None:
        """``trim``: share of devices taken for hostile; ``folder``: as
        :class:`~coordinator.aggregation.spilled_values.SpilledValues`."""
        super().__init__(reference, folder=folder)
        self._trim = trim

    @staticmethod
    def least_updates(trim: float) -> int:
        """As :meth:`SpilledRule.least_updates`: n >= 2 f + 3 for an f of one."""
        return least_of_share(trim, 5) if trim else 4

    def result(self) -> dict[str, np.ndarray]:
        """The winner's values; entries it does not hold keep their bits."""
        return self.mean_of_best(1)

    def mean_of_best(self, count: int) -> dict[str, np.ndarray]:
        """The mean per entry over the ``count`` updates of the lowest scores, each weighed alike."""
        least = self.least_updates(self._trim)
        best = ranked(squared_distances(self.values, least), hostile(len(self.values.devices), self._trim))[:count]
        return self.values.combined(functools.partial(middle_mean, trim=0.0), best, least=least)

    @property
    def count(self) -> int:
        """Updates taken so far."""
        return len(self.values.devices)

    @property
    def trim(self) -> float:
        """The share taken for hostile."""
        return self._trim


def hostile(count: int, trim: float) -> int:
    """f of ``count`` updates: a share of them, and no more than the rule can stand, n >= 2 f + 3."""
    return max(0, min(int(trim * count + 1e-9), (count - 3) // 2))


def squared_distances(values: SpilledValues, least: int = 1) -> np.ndarray:
    """Squared distances [devices, devices] per common entry, infinite where there is none; integers do not count.

    Args:
        least: devices that have to hold an entry for it to count.
    """
    count = len(values.devices)
    squares, common = np.zeros((count, count)), np.zeros((count, count))
    for name, before in values.reference.items():
        holders = values.holders(name)
        if before.dtype.kind != "f" or not holders:
            continue
        pairs, flat, covered = np.ix_(holders, holders), before.reshape(-1), values.is_covered(name, least)
        if not covered.any():
            continue
        for start, end, tile in values.tiles(name, holders):
            width = max(1, TILE_BYTES // (8 * len(holders)))
            for first in range(0, end - start, width):
                last = min(end - start, first + width)
                # From the model they started at: what they have in common cancels exactly, not in the products.
                moved = tile[:, first:last] - flat[start + first : start + last].astype(np.float64)
                if not (taken := covered[start + first : start + last]).all():
                    moved = moved[:, taken]
                found, shared = _compared(moved)
                squares[pairs] += found
                common[pairs] += shared
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(common > 0, np.maximum(squares, 0.0) / common, np.inf)


def _compared(moved: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
    """Sums of squared differences [devices, devices] over common entries, and how many those are."""
    lacks = np.isnan(moved)
    if not lacks.any():
        products = moved @ moved.T
        own = np.diag(products)
        return own[:, None] + own[None, :] - 2 * products, float(moved.shape[1])
    held = (~lacks).astype(np.float64)
    moved = np.where(lacks, 0.0, moved)
    own = (moved * moved) @ held.T
    return own + own.T - 2 * (moved @ moved.T), held @ held.T


def ranked(distances: np.ndarray, assumed: int) -> list[int]:
    """Numbers of the updates, lowest score first; equal scores in the order they came.

    Args:
        distances: as :func:`squared_distances` gives.
        assumed: f.
    """
    count = len(distances)
    scores = np.full(count, np.inf)
    for number in range(count):
        others = np.sort(np.delete(distances[number], number))
        closest = others[: max(1, count - assumed - 2)]
        closest = closest[np.isfinite(closest)]
        if closest.size:
            scores[number] = closest.mean()
    return [int(number) for number in np.argsort(scores, kind="stable")]

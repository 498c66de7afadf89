"""How much of (epsilon, delta) the released models have spent, by a library's Renyi accountant.

Neighbours are two federations that differ in everything one device holds (replace one; the number of devices is known).
A round sums clipped differences, so replacing a device moves the sum by at most 2 C, and noise of deviation z C has the
multiplier z / 2 against that. Two bounds hold for it and the smaller is taken:

- a cohort of fixed size, drawn without replacement, that stays secret: Theorem 27 of Wang, Balle and Kasiviswanathan,
  "Subsampled Renyi differential privacy and analytical moments accountant", AISTATS 2019;
- the plain Gaussian mechanism in every round, whoever is drawn: Mironov, "Renyi differential privacy", CSF 2017.

The estimator is that of McMahan et al., ICLR 2018: clipped differences of equal weight over a fixed denominator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec

from edge.contracts.errors import ApportionError, ConfigError


class PrivacyBudgetSpent(ApportionError):
    """The next round would spend more than ``$.privacy.max-epsilon``; the run stops before it and can be resumed."""

    code = "privacy-budget-spent"


class Release(msgspec.Struct, frozen=True):
    """What one round lets out: noise of ``multiplier`` times the clip norm on a sum over ``cohort`` of ``population``.

    Where the draw of the cohort is no secret both counts are equal.
    """

    multiplier: float
    cohort: int
    population: int


def epsilon(releases: Iterable[Release], delta: float) -> float:
    """The epsilon that holds for all of ``releases`` together at ``delta``; 0 for none, infinite without noise.

    Raises:
        ConfigError: the accountant is not installed.
    """
    counts = Counter(releases)
    if not counts:
        return 0.0
    spent = []
    for is_sampled in (True, False):
        of_each = [(times, *_divergence(release, is_sampled)) for release, times in counts.items()]
        _, orders, _ = of_each[0]
        total = sum(times * divergence for times, _, divergence in of_each)
        spent.append(float(_library().rdp.compute_epsilon(orders, total, delta)[0]))
    return min(spent)


@lru_cache(maxsize=8192)
def _divergence(release: Release, is_sampled: bool) -> tuple[Any, Any]:
    """Orders and Renyi divergences of a release; kept, for every round asks for those of all rounds before it."""
    library = _library()
    gaussian = library.GaussianDpEvent(release.multiplier / 2)
    event = (
        library.SampledWithoutReplacementDpEvent(release.population, release.cohort, gaussian)
        if is_sampled and release.cohort < release.population
        else gaussian
    )
    accountant = library.rdp.RdpAccountant(neighboring_relation=library.NeighboringRelation.REPLACE_ONE)
    accountant.compose(event)
    return accountant._orders, accountant._rdp


def _library() -> Any:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError as error:
        raise ConfigError(
            ["$.privacy.noise-multiplier: the accountant is not installed; pip install 'apportion[privacy]'"]
        ) from error
    return dp_accounting

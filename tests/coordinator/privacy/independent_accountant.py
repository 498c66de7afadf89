"""A lower bound of the epsilon that rounds truly spend, by another way than the product's: privacy losses, numerically.

One instance of neighbours is enough for a lower bound: every other device sends zeros, and the device that is replaced
sends +S in one federation and -S in the other. In units of S, a reader of the models then tells ``n`` values of
``(1 - q) N(0, z^2) + q N(1, z^2)`` from as many of ``(1 - q) N(0, z^2) + q N(-1, z^2)``, q being the chance that the
device is in the round's sum. Source of the method: Koskela, Jaelkoe and Honkela, AISTATS 2020 (composition by FFT);
losses are rounded down here and what is cut off is left out, so that delta, and with it epsilon, comes out too small.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import brentq
from scipy.signal import fftconvolve
from scipy.stats import binom, hypergeom, norm

STEP = 2e-3
"""Of the grid of losses, in nats."""


def least_epsilon(rounds: Sequence[tuple[float, float]], delta: float) -> float:
    """No less is spent at ``delta`` by ``rounds``, each (q, z); 0 for none."""
    mass, first = np.ones(1), 0
    for q, z in rounds:
        of_one, start = _losses(q, z)
        mass, first = fftconvolve(mass, of_one), first + start
    losses = (first + np.arange(len(mass))) * STEP

    def beyond(value: float) -> float:
        above = losses > value
        return float(np.sum(mass[above] * -np.expm1(value - losses[above]))) - 1e-12 - delta

    return float(brentq(beyond, 0.0, losses[-1], xtol=1e-6)) if beyond(0.0) > 0 else 0.0


def exact_epsilon(z: float, rounds: int, delta: float) -> float:
    """Of ``rounds`` with everybody in each: the Gaussian mechanism's own.

    Source: Balle and Wang, ICML 2018, theorem 8.
    """
    mu = 2 * rounds**0.5 / z

    def beyond(value: float) -> float:
        left = norm.cdf(mu / 2 - value / mu)
        return float(left - np.exp(value + norm.logcdf(-mu / 2 - value / mu))) - delta

    return float(brentq(beyond, 0.0, mu * mu + 40 * mu, xtol=1e-9))


def chance_in_sum(here: int, training: int, drawn: int, *, loses: float, needed: int) -> float:
    """That a device which always reports is in a round's sum, in the attempt that was not repeated.

    Args:
        here: devices that are drawn from, itself among them.
        training: of these, how many report at all when they are drawn.
        loses: share of the others' reports that get lost.
        needed: reports that an attempt needs.
    """
    with_it = _enough(here - 1, training - 1, drawn - 1, loses, needed - 1)
    without = _enough(here - 1, training - 1, min(drawn, here - 1), loses, needed)
    q = drawn / here
    return q * with_it / (q * with_it + (1 - q) * without)


def _enough(here: int, training: int, drawn: int, loses: float, needed: int) -> float:
    asked = np.arange(drawn + 1)
    return float(np.sum(hypergeom.pmf(asked, here, training, drawn) * binom.sf(needed - 1, asked, 1 - loses)))


def _losses(q: float, z: float) -> tuple[np.ndarray, int]:
    """Mass of each loss of one round where the device sends +S, and the place of the first on the grid."""

    def loss(x: np.ndarray) -> np.ndarray:
        shift, rest = 1 / (2 * z * z), np.log1p(-q) if q < 1 else -np.inf
        up = np.logaddexp(rest, np.log(q) + x / (z * z) - shift)
        down = np.logaddexp(rest, np.log(q) - x / (z * z) - shift)
        return np.asarray(up - down)

    low, high = -9 * z, 1 + 9 * z
    first, last = (int(np.floor(loss(np.array(end)) / STEP)) for end in (low, high))
    edges = np.arange(first, last + 2)
    left, right = np.full(len(edges), low - z), np.full(len(edges), high + z)
    for _ in range(60):  # the loss rises with x
        middle = (left + right) / 2
        is_below = loss(middle) < edges * STEP
        left, right = np.where(is_below, middle, left), np.where(is_below, right, middle)
    below = (1 - q) * norm.cdf(right, scale=z) + q * norm.cdf(right, loc=1, scale=z)
    return np.diff(below), first

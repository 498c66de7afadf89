"""Epsilon against published values and against the theorem's own formula."""

from __future__ import annotations

import math

import pytest

from coordinator.privacy.accountant import Release, epsilon

dp_accounting = pytest.importorskip("dp_accounting", reason="the extra privacy is not installed")


def test_library_gives_the_published_epsilon_of_dpsgd() -> None:
    """q = 0.01, sigma = 4, 10,000 steps, delta = 1e-5: epsilon 1.26.

    Source: Abadi et al., "Deep Learning with Differential Privacy", CCS 2016, section 5.1 (moments accountant). The
    library converts from Renyi's divergence more tightly than the paper (Canonne, Kamath and Steinke, 2020).
    """
    accountant = dp_accounting.rdp.RdpAccountant()
    step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(4.0))
    accountant.compose(step, 10_000)
    orders, divergence = accountant._orders, accountant._rdp
    published = min(d + math.log(1e5) / (a - 1) for a, d in zip(orders, divergence, strict=True) if a > 1)
    assert published == pytest.approx(1.26, abs=0.01)
    assert 0.8 * published < accountant.get_epsilon(1e-5) < published


def test_everyone_drawn_is_the_gaussian_mechanism_of_twice_the_clip_norm() -> None:
    """Against the closed form: min over alpha of n alpha 2 / z^2 + log(1/delta) / (alpha - 1), which is looser."""
    z, rounds, delta = 8.0, 30, 1e-6
    rho = rounds * 2 / z**2  # alpha / (2 (z / 2)^2) = alpha 2 / z^2 for every round
    loose = rho + 2 * math.sqrt(rho * math.log(1 / delta))  # at alpha = 1 + sqrt(log(1/delta) / rho)
    exact = dp_accounting.get_epsilon_gaussian(z / 2 / math.sqrt(rounds), delta)  # Balle and Wang, 2018
    found = epsilon([Release(z, 20, 20)] * rounds, delta)
    assert exact < found < loose
    assert found == pytest.approx(exact, rel=0.07)


def test_secret_draw_costs_less_and_never_more_than_the_noise_alone() -> None:
    plain = epsilon([Release(2.0, 10, 10)] * 50, 1e-5)
    drawn = [epsilon([Release(2.0, 10, population)] * 50, 1e-5) for population in (11, 20, 100, 1000)]
    assert all(spent <= plain for spent in drawn)
    assert drawn == sorted(drawn, reverse=True)
    assert drawn[-1] < plain / 20


def test_amplified_epsilon_is_the_theorems_at_order_two() -> None:
    """log(1 + q^2 C(2,2) min(4 (e^(1/s^2) - 1), 2 e^(1/s^2))) with s = z / 2: Theorem 27 of Wang et al. at alpha = 2.

    One order alone gives an epsilon that all orders together cannot exceed.
    """
    z, q, rounds, delta = 4.0, 0.01, 10, 1e-5
    s = z / 2
    divergence = math.log(1 + q**2 * min(4 * (math.exp(1 / s**2) - 1), 2 * math.exp(1 / s**2)))
    at_two = rounds * divergence + math.log(1 / delta)
    own = dp_accounting.rdp.RdpAccountant([2.0], dp_accounting.NeighboringRelation.REPLACE_ONE)
    own.compose(dp_accounting.SampledWithoutReplacementDpEvent(1000, 10, dp_accounting.GaussianDpEvent(s)))
    assert own._rdp[0] == pytest.approx(divergence, rel=1e-9)
    assert epsilon([Release(z, 10, 1000)] * rounds, delta) < at_two


@pytest.mark.slow
def test_rounds_of_different_cohorts_add_up() -> None:
    few, many = [Release(3.0, 10, 100)] * 5, [Release(3.0, 10, 40)] * 5
    together = epsilon([*few, *many], 1e-5)
    assert max(epsilon(few, 1e-5), epsilon(many, 1e-5)) < together < epsilon(few, 1e-5) + epsilon(many, 1e-5)


def test_nothing_released_costs_nothing_and_no_noise_everything() -> None:
    assert epsilon([], 1e-5) == 0.0
    assert epsilon([Release(0.0, 1, 1)], 1e-5) == math.inf

"""Noise has the distribution it is accounted as, and is its seed's alone."""

from __future__ import annotations

import numpy as np
from scipy import stats

from coordinator.privacy.gaussian_noise import normal

SEED = bytes(range(32))


def test_a_million_draws_have_the_deviation_and_pass_for_normal() -> None:
    values = normal(SEED, "weight", (1000, 1000), 3.0)
    # Standard errors of mean and deviation of n normal values: s / sqrt(n) and s / sqrt(2 n); four of each.
    assert abs(values.mean()) < 4 * 3.0 / 1000
    assert abs(values.std() - 3.0) < 4 * 3.0 / np.sqrt(2e6)
    assert stats.kstest(values.ravel() / 3.0, "norm").pvalue > 0.01
    pairs = values.reshape(-1, 2)  # both values of one Box-Muller draw
    assert abs(np.corrcoef(pairs.T)[0, 1]) < 0.01


def test_equal_seeds_give_equal_bits_and_others_do_not() -> None:
    first = normal(SEED, "weight", (3,), 1.0)
    assert np.array_equal(first, normal(SEED, "weight", (3,), 1.0))
    assert np.array_equal(first, normal(SEED, "weight", (4,), 1.0)[:3])
    assert not np.isclose(first, normal(SEED, "bias", (3,), 1.0)).any()
    assert not np.isclose(first, normal(bytes(32), "weight", (3,), 1.0)).any()


def test_shapes_without_and_with_one_entry() -> None:
    assert normal(SEED, "a", (0, 4), 1.0).shape == (0, 4)
    assert normal(SEED, "a", (), 1.0).shape == ()


def test_values_go_on_over_the_border_of_a_chunk() -> None:
    values = normal(SEED, "weight", ((1 << 20) + 3,), 1.0)
    assert len(np.unique(values)) == len(values)

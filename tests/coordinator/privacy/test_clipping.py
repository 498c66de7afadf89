"""Clipping by hand: the norm over all tensors, the factor, and what is short enough already."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.privacy.gaussian_noise import difference, norm_of, scale_down

TRAINED = {"a": np.array([4.0, 1.0], np.float32), "b": np.array([[5.0]], np.float32), "count": np.array(7)}
SENT = {"a": np.array([1.0, 1.0], np.float32), "b": np.array([[1.0]], np.float32), "count": np.array(6)}


def test_norm_is_over_the_named_tensors_together() -> None:
    moved = difference(TRAINED, SENT, ["a", "b"])
    assert moved["a"].tolist() == [3.0, 0.0]
    assert moved["a"].dtype == np.float64
    assert norm_of(moved) == 5.0  # sqrt(3^2 + 4^2)


def test_longer_difference_is_scaled_to_the_limit() -> None:
    kept, norm = scale_down(difference(TRAINED, SENT, ["a", "b"]), 2.5)
    assert norm == 5.0
    assert kept["a"].tolist() == [1.5, 0.0]
    assert kept["b"].tolist() == [[2.0]]


@pytest.mark.parametrize("limit", [5.0, 80.0])
def test_shorter_difference_keeps_its_bits(limit: float) -> None:
    moved = difference(TRAINED, SENT, ["a", "b"])
    kept, _ = scale_down(moved, limit)
    assert all(np.array_equal(kept[name], moved[name]) for name in moved)


def test_difference_beyond_float64_is_clipped_to_nothing() -> None:
    kept, norm = scale_down({"a": np.array([1e200, 1e200])}, 1.0)
    assert norm == float("inf")
    assert kept["a"].tolist() == [0.0, 0.0]

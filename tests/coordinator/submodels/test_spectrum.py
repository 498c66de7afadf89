"""The truncated decomposition: equal to LAPACK's, balanced, the same bits again."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.submodels.spectrum import truncated_svd


def matrix(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, columns))


@pytest.mark.parametrize(("rows", "columns"), [(40, 40), (60, 24), (24, 60)])
@pytest.mark.parametrize("rank", [1, 5, 12, 24])
def test_product_is_the_best_approximation_of_its_rank(rows: int, columns: int, rank: int) -> None:
    a = matrix(rows, columns)
    left, values, right = np.linalg.svd(a, full_matrices=False)
    best = (left[:, :rank] * values[:rank]) @ right[:rank]
    found = truncated_svd(a, rank)
    assert np.linalg.norm(found.left_NR @ found.right_RM - best) <= 1e-12 * np.linalg.norm(best)
    assert np.allclose(found.values_R, values[:rank], rtol=1e-12)


def test_both_factors_carry_the_same_energy() -> None:
    found = truncated_svd(matrix(30, 20), 7)
    assert np.isclose((found.left_NR**2).sum(), found.values_R.sum(), rtol=1e-13)
    assert np.isclose((found.right_RM**2).sum(), found.values_R.sum(), rtol=1e-13)


def test_full_rank_product_is_the_matrix_even_when_it_is_nearly_singular() -> None:
    a = matrix(30, 4) @ matrix(4, 30, seed=1) + 1e-9 * matrix(30, 30, seed=2)
    found = truncated_svd(a, 30)
    assert np.abs(found.left_NR @ found.right_RM - a).max() <= 1e-13 * np.abs(a).max()


@pytest.mark.parametrize("a", [np.zeros((6, 5)), np.eye(6), np.ones((4, 6))], ids=["zeros", "eye", "ones"])
def test_degenerate_matrices_decompose(a: np.ndarray) -> None:
    found = truncated_svd(a, min(a.shape))
    assert np.allclose(found.left_NR @ found.right_RM, a, atol=1e-14)


def test_same_matrix_gives_the_same_bits_in_any_memory_layout() -> None:
    a = matrix(64, 48)
    first = truncated_svd(a, 10)
    again = truncated_svd(np.asfortranarray(a), 10)
    assert first.left_NR.tobytes() == again.left_NR.tobytes()
    assert first.right_RM.tobytes() == again.right_RM.tobytes()


def test_signs_are_fixed_by_the_largest_entry() -> None:
    found = truncated_svd(matrix(20, 10), 10)
    peaks = found.right_RM[np.arange(10), np.abs(found.right_RM).argmax(axis=1)]
    assert (peaks > 0).all()


@pytest.mark.parametrize("rank", [0, 11])
def test_impossible_rank_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} of a 20x10"):
        truncated_svd(matrix(20, 10), rank)

"""Memory models against truths that are known."""

from __future__ import annotations

import numpy as np
import pytest

from profiles.fit import FitImpossible
from profiles.memory_fit import fit_memory

MB = 2**20
SIZES = [4, 8, 12, 20, 30, 45, 60, 80, 110, 150]


def test_memory_fit_gives_scale_and_offset_back() -> None:
    fit = fit_memory([(size * MB, round(1.1 * size * MB) + 3 * MB) for size in SIZES])
    assert fit.scale == pytest.approx(1.1, rel=1e-5)
    assert fit.offset_bytes == pytest.approx(3 * MB, rel=1e-4)
    assert fit.growth_bytes(70 * MB) == pytest.approx(80 * MB, rel=1e-5)
    assert fit.missing_bytes <= 1
    assert fit.quality.worst_error < 1e-6


def test_memory_fit_of_a_prediction_that_is_too_large_by_a_constant() -> None:
    fit = fit_memory([(size * MB, size * MB - 2 * MB) for size in SIZES])
    assert (fit.scale, fit.offset_bytes) == (pytest.approx(1.0), pytest.approx(-2 * MB))
    assert fit.growth_bytes(MB) == 0


def test_memory_fit_covers_the_worst_peak_and_not_the_wrong_one() -> None:
    draw = np.random.default_rng(4)
    exact = [(size * MB, round(size * MB * (1.0 + 0.02 * float(draw.normal())))) for size in SIZES * 3]
    high = (60 * MB, 66 * MB)  # once, beside three of 60
    wrong = (31 * MB, 300 * MB)
    fit = fit_memory([*exact, high, wrong])
    assert fit.quality.left_out == 1
    assert fit.scale == pytest.approx(1.0, abs=0.05)
    assert fit.growth_bytes(60 * MB) + fit.missing_bytes >= high[1]
    assert fit.missing_bytes < 10 * MB


def test_memory_fit_finds_the_floor_of_small_artifacts() -> None:
    truth = [(size * MB, max(15 * MB, round(1.02 * size * MB) - 4 * MB)) for size in (2, 3, 5, 9, *SIZES)]
    fit = fit_memory(truth)
    assert fit.floor_bytes == 15 * MB
    assert fit.scale == pytest.approx(1.02, rel=1e-4)
    assert [fit.growth_bytes(size * MB) for size in (1, 100)] == [15 * MB, pytest.approx(98 * MB, rel=1e-4)]
    assert fit.quality.worst_error < 1e-4
    assert fit.quality.points == len({predicted for predicted, _ in truth})


def test_memory_fit_finds_a_floor_that_rises_with_the_graph() -> None:
    draw = np.random.default_rng(6)
    samples, graphs = [], []
    for size in (2, 3, 5, 6, 8, 9, 11, 14, 18, 22, 26, 30, 38, 45, 60, 80):
        graphs.append(int(draw.integers(10_000, 250_000)))
        samples.append((size * MB, max(12 * MB + 48 * graphs[-1], size * MB - 2 * MB)))
    fit = fit_memory(samples, graphs)
    assert (fit.scale, fit.offset_bytes) == (pytest.approx(1.0, rel=1e-3), pytest.approx(-2 * MB, rel=0.05))
    assert (fit.floor_base_bytes, fit.floor_graph_scale) == (
        pytest.approx(12 * MB, rel=1e-3),
        pytest.approx(48, rel=1e-2),
    )
    assert fit.growth_bytes(MB, 100_000) == pytest.approx(12 * MB + 4_800_000, rel=1e-3)
    assert fit.growth_bytes(MB) == fit.floor_bytes  # of the median graph
    assert fit.line().growth_bytes(70 * MB, 10_000) == pytest.approx(68 * MB, rel=1e-3)
    assert (fit.quality.points, fit.quality.left_out) == (16, 0)
    assert fit_memory(samples, [0, *graphs[1:]]).floor_graph_scale == 0.0


def test_memory_fit_takes_no_floor_that_a_line_does_without() -> None:
    draw = np.random.default_rng(5)
    noisy = [(size * MB, round((size + 9) * MB * (1.0 + 0.03 * float(draw.normal())))) for size in SIZES]
    assert fit_memory(noisy).floor_bytes == 0


@pytest.mark.parametrize("samples", [[], [(5, 5)], [(5, 5), (5, 6)], [(5, 0), (6, 7), (7, 8)]])
def test_memory_fit_of_too_little_is_refused(samples: list[tuple[int, int]]) -> None:
    with pytest.raises(FitImpossible):
        fit_memory(samples)

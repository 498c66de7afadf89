"""Fits against brute force, and against models whose coefficients are known, with noise and wrong points."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from profiles.fit import Array, FitImpossible, fit_line, solve_nonnegative


def brute_force(a_NP: Array, b_N: Array) -> Array:
    """The best of the plain solutions over every choice of columns that is not negative."""
    count = a_NP.shape[1]
    sizes = np.abs(a_NP).max(axis=0)  # or lstsq takes small columns for nothing
    best, least = np.zeros(count), float(np.linalg.norm(b_N))
    for size in range(1, count + 1):
        for chosen in itertools.combinations(range(count), size):
            part = np.linalg.lstsq(a_NP[:, chosen] / sizes[list(chosen)], b_N, rcond=None)[0] / sizes[list(chosen)]
            x_P = np.zeros(count)
            x_P[list(chosen)] = part
            miss = float(np.linalg.norm(a_NP @ x_P - b_N))
            if (part >= 0).all() and miss < least - 1e-12:
                best, least = x_P, miss
    return best


@pytest.mark.parametrize("seed", range(40))
def test_solve_nonnegative_is_brute_forces(seed: int) -> None:
    draw = np.random.default_rng(seed)
    columns = int(draw.integers(1, 7))
    a_NP = draw.normal(size=(int(draw.integers(columns, 14)), columns)) * 10.0 ** draw.integers(-6, 7, columns)
    b_N = draw.normal(size=len(a_NP))
    found, expected = solve_nonnegative(a_NP, b_N), brute_force(a_NP, b_N)
    assert (found >= 0).all()
    np.testing.assert_allclose(np.linalg.norm(a_NP @ found - b_N), np.linalg.norm(a_NP @ expected - b_N), rtol=1e-9)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


def test_solve_nonnegative_keeps_to_zero_where_everything_else_is_worse() -> None:
    a_NP = np.array([[1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_array_equal(solve_nonnegative(a_NP, np.array([-1.0, 2.0])), [0.0, 2.0])
    np.testing.assert_array_equal(solve_nonnegative(a_NP, np.array([-1.0, -2.0])), [0.0, 0.0])


TRUTH = {"constant": 12.0, "a": 0.5, "b": 3e-4}


def measurements(count: int, *, noise: float, seed: int = 7, repeats: int = 1) -> list[tuple[dict[str, float], float]]:
    draw = np.random.default_rng(seed)
    samples = []
    for _ in range(count):
        point = {"constant": 1.0, "a": float(draw.integers(1, 64)), "b": float(draw.integers(1000, 200_000))}
        exact = sum(TRUTH[name] * value for name, value in point.items())
        samples += [(point, exact * (1.0 + noise * float(draw.normal()))) for _ in range(repeats)]
    return samples


def test_exact_measurements_give_the_truth_back() -> None:
    fit = fit_line(measurements(8, noise=0.0))
    assert fit.coefficients == pytest.approx(TRUTH, rel=1e-9)
    assert fit.quality.worst_error < 1e-9
    assert (fit.quality.points, fit.quality.left_out, fit.quality.freedom) == (8, 0, 5)
    assert fit.predict({"constant": 1.0, "a": 10.0, "b": 0.0}) == pytest.approx(17.0)


@pytest.mark.parametrize("seed", range(5))
def test_noise_stays_within_what_the_standard_errors_say(seed: int) -> None:
    fit = fit_line(measurements(60, noise=0.03, seed=seed))
    for name, truth in TRUTH.items():
        error = fit.errors[name]
        assert error is not None
        assert abs(fit.coefficients[name] - truth) < 4 * error
    assert 0.01 < fit.quality.median_error < 0.04


def test_one_repeat_that_was_interrupted_changes_nothing() -> None:
    samples = measurements(10, noise=0.0, repeats=3)
    spoiled = [(point, value * (20.0 if index % 3 == 0 else 1.0)) for index, (point, value) in enumerate(samples)]
    fit = fit_line(spoiled)
    assert fit.coefficients == pytest.approx(TRUTH, rel=1e-9)
    assert (fit.quality.points, fit.quality.left_out) == (10, 0)


@pytest.mark.parametrize("factor", [0.01, 0.1, 0.5, 1.5, 4.0, 100.0])
def test_points_that_are_wrong_throughout_are_left_out_and_counted(factor: float) -> None:
    samples = measurements(24, noise=0.01)
    wrong = [(point, value * (factor if index in (3, 11, 17) else 1.0)) for index, (point, value) in enumerate(samples)]
    fit = fit_line(wrong)
    assert fit.quality.left_out == 3
    assert fit.quality.worst_error < 0.05
    for name, truth in TRUTH.items():
        assert fit.coefficients[name] == pytest.approx(truth, rel=0.1)


def test_few_points_are_all_used() -> None:
    samples = measurements(6, noise=0.0)
    fit = fit_line([*samples[:5], (samples[5][0], samples[5][1] * 3)])
    assert (fit.quality.points, fit.quality.left_out) == (6, 0)
    assert fit.quality.worst_error > 0.1


def test_what_would_be_negative_is_zero_and_has_no_error() -> None:
    samples = [({"one": 1.0, "x": float(x)}, 10.0 - 0.1 * x) for x in range(8)]
    fit = fit_line(samples)
    assert fit.coefficients["x"] == 0.0
    assert fit.errors["x"] is None
    signed = fit_line(samples, signed=("x",))
    assert signed.coefficients == pytest.approx({"one": 10.0, "x": -0.1})


def test_no_freedom_says_no_error() -> None:
    fit = fit_line(measurements(3, noise=0.0))
    assert (fit.quality.freedom, set(fit.errors.values())) == (0, {None})


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no measurements"),
        ([({"a": 1.0, "b": 2.0}, 3.0)] * 5, "1 different measurements for 2 coefficients"),
        ([({"a": float(i), "b": 2.0 * i, "c": 1.0}, 3.0 + i) for i in range(1, 6)], "a, b: always changed together"),
        ([({"a": float(i), "b": 0.0}, 1.0 + i) for i in range(1, 6)], "b: 0 in every measurement"),
        ([({"a": 1.0}, 0.0)], "not above 0"),
        ([({"a": float("nan")}, 1.0)], "not finite"),
        ([({"a": 1.0}, float("inf"))], "not finite"),
    ],
)
def test_measurements_that_do_not_determine_the_model_are_refused(
    samples: list[tuple[dict[str, float], float]], message: str
) -> None:
    with pytest.raises(FitImpossible, match=message):
        fit_line(samples)


def test_a_feature_without_a_column_is_an_error() -> None:
    with pytest.raises(KeyError, match="colour"):
        fit_line(measurements(8, noise=0.0)).predict({"colour": 1.0})

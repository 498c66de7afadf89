"""Straight-line models fitted to measurements that repeat, scatter, and sometimes are simply wrong.

``measured = sum over columns of coefficient x feature``. Coefficients are not negative unless a column is ``signed``:
no layer takes less than no time. Relative errors are what is made small, so that a fast point counts as much as a slow
one. Repeats of a point become their median; a point far from all others is left out and counted. Needs NumPy, so no
supervisor imports it. Legend: N points, P columns.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FAR_OUT = 5.0
"""A point is left out when its error is this many times the usual one (1.4826 x the median, the normal sigma)."""

LEAST_ERROR = 0.01
"""Errors below one percent are never far out, however small the others are."""

_DRAWS, _STEPS = 40, 4


class FitImpossible(ValueError):
    """The measurements do not determine the model; the text says which ones are missing."""


@dataclass(frozen=True)
class FitQuality:
    """How well the model gives the measurements back, relative to each of them.

    Attributes:
        points: settings that the fit used, repeats of one counted once.
        left_out: settings whose median was far from what all others say.
        median_error, worst_error: of the points used; 0.05 is five percent.
        freedom: points beyond those that any coefficients would meet; errors of a fit with 0 say nothing.
    """

    points: int
    left_out: int
    median_error: float
    worst_error: float
    freedom: int


@dataclass(frozen=True)
class LineFit:
    """The coefficients, by column.

    Attributes:
        coefficients: not negative but for signed columns.
        errors: standard error of each, None where it cannot be said: at the bound of 0, or with no freedom left.
    """

    coefficients: Mapping[str, float]
    errors: Mapping[str, float | None]
    quality: FitQuality

    def predict(self, features: Mapping[str, float]) -> float:
        """What the model says for ``features``; a column that is not given counts as 0.

        Raises:
            KeyError: a feature that the model has no column for.
        """
        return sum(self.coefficients[name] * value for name, value in features.items())


def fit_line(samples: Sequence[tuple[Mapping[str, float], float]], *, signed: Collection[str] = ()) -> LineFit:
    """The model of ``samples``: (features by column, measured), every measured value above 0.

    Args:
        signed: columns whose coefficient may be negative.

    Raises:
        FitImpossible: too few points, or points in which columns do not vary on their own; the text names the columns.
    """
    columns = tuple(dict.fromkeys(itertools.chain.from_iterable(features for features, _ in samples)))
    points = _medians(samples, columns)
    a_NP = np.array([features for features, _ in points], dtype=np.float64).reshape(len(points), len(columns))
    b_N = np.array([measured for _, measured in points], dtype=np.float64)
    _check(a_NP, b_N, columns)
    rows_NP = a_NP / b_N[:, None]  # each row then aims at 1: errors are relative
    used_N = _used(a_NP, b_N, columns, signed)
    x_P = _solve(rows_NP[used_N], np.ones(int(used_N.sum())), columns, signed)
    errors_N = np.abs(rows_NP[used_N] @ x_P - 1.0)
    freedom = int(used_N.sum()) - len(columns)
    quality = FitQuality(
        points=int(used_N.sum()),
        left_out=int((~used_N).sum()),
        median_error=float(np.median(errors_N)),
        worst_error=float(errors_N.max()),
        freedom=freedom,
    )
    return LineFit(
        dict(zip(columns, x_P.tolist(), strict=True)),
        _standard_errors(rows_NP[used_N], x_P, columns, freedom),
        quality,
    )


def solve_nonnegative(a_NP: Array, b_N: Array) -> Array:
    """The x_P >= 0 that makes ``|a x - b|`` smallest.

    Source: Lawson and Hanson, Solving Least Squares Problems, chapter 23, algorithm NNLS.
    """
    count = a_NP.shape[1]
    norms_P = np.linalg.norm(a_NP, axis=0)
    norms_P[norms_P == 0.0] = 1.0
    scaled_NP = a_NP / norms_P
    tolerance = 1e-10 * max(1.0, float(np.linalg.norm(b_N)))
    x_P, free_P = np.zeros(count), np.zeros(count, dtype=bool)
    for _ in range(10 * count + 10):
        slope_P = scaled_NP.T @ (b_N - scaled_NP @ x_P)
        slope_P[free_P] = -np.inf
        entering = int(slope_P.argmax()) if count else 0
        if not count or slope_P[entering] <= tolerance:
            break
        free_P[entering] = True
        x_P = _step_inside(scaled_NP, b_N, x_P, free_P)
    found: Array = x_P / norms_P
    return found


def _step_inside(a_NP: Array, b_N: Array, x_P: Array, free_P: NDArray[np.bool_]) -> Array:
    """From ``x`` to the solution over the free columns, freeing fewer until it is not negative; changes ``free_P``."""
    while free_P.any():
        target_P = np.zeros_like(x_P)
        target_P[free_P] = np.linalg.lstsq(a_NP[:, free_P], b_N, rcond=None)[0]
        blocking_P = free_P & (target_P <= 0.0)
        if not blocking_P.any():
            return target_P
        shares = x_P[blocking_P] / np.maximum(x_P[blocking_P] - target_P[blocking_P], 1e-300)
        x_P = x_P + shares.min() * (target_P - x_P)
        leaving_P = blocking_P & (x_P <= 1e-14 * max(1.0, float(x_P.max())))
        free_P[leaving_P] = False
        x_P[~free_P] = 0.0
    return x_P


def _medians(
    samples: Sequence[tuple[Mapping[str, float], float]], columns: Sequence[str]
) -> list[tuple[tuple[float, ...], float]]:
    repeats: defaultdict[tuple[float, ...], list[float]] = defaultdict(list)
    for features, measured in samples:
        repeats[tuple(float(features.get(name, 0.0)) for name in columns)].append(float(measured))
    return [(point, float(np.median(values))) for point, values in repeats.items()]


def _check(a_NP: Array, b_N: Array, columns: Sequence[str]) -> None:
    if not columns:
        raise FitImpossible("there are no measurements; take at least one per coefficient")
    if not (np.isfinite(a_NP).all() and np.isfinite(b_N).all() and (b_N > 0.0).all()):
        raise FitImpossible("a measurement is not finite or not above 0; take it again or leave it out")
    norms_P = np.linalg.norm(a_NP, axis=0)
    empty = [name for name, norm in zip(columns, norms_P, strict=True) if norm == 0.0]
    if empty:
        raise FitImpossible(f"{', '.join(empty)}: 0 in every measurement; take some in which it is not")
    if len(b_N) < len(columns):
        raise FitImpossible(
            f"{len(b_N)} different measurements for {len(columns)} coefficients ({', '.join(columns)}); take more"
        )
    _, values, directions = np.linalg.svd(a_NP / norms_P)
    if values[-1] < 1e-8 * values[0]:
        tied = [name for name, share in zip(columns, np.abs(directions[-1]), strict=True) if share > 0.05]
        raise FitImpossible(
            f"{', '.join(tied)}: always changed together, so their parts cannot be told apart; "
            "measure some settings in which one of them changes alone"
        )


def _solve(a_NP: Array, b_N: Array, columns: Sequence[str], signed: Collection[str]) -> Array:
    """A signed column goes in twice, the second time with the other sign."""
    which = [index for index, name in enumerate(columns) if name in signed]
    x_P = solve_nonnegative(np.hstack([a_NP, -a_NP[:, which]]), b_N)
    found: Array = x_P[: len(columns)].copy()
    found[which] -= x_P[len(columns) :]
    return found


def _used(a_NP: Array, b_N: Array, columns: Sequence[str], signed: Collection[str]) -> NDArray[np.bool_]:
    """Which points the last fit uses: all, but those far from a fit that no single point could draw to itself."""
    count = len(b_N)
    every = np.ones(count, dtype=bool)
    if count < 2 * len(columns) + 2:
        return every  # too few to say which of them is wrong
    errors_N = _trimmed_errors(a_NP, b_N, columns, signed)
    usual = max(LEAST_ERROR / FAR_OUT, 1.4826 * float(np.median(errors_N)))
    used_N: NDArray[np.bool_] = errors_N <= FAR_OUT * usual
    # Leaving points out must not leave a column without any that determine it.
    norms_P = np.linalg.norm(a_NP, axis=0)
    return used_N if np.linalg.matrix_rank(a_NP[used_N] / norms_P) == len(columns) else every


def _trimmed_errors(a_NP: Array, b_N: Array, columns: Sequence[str], signed: Collection[str]) -> Array:
    """|log(predicted / measured)| of every point under the fit whose best three quarters of the points are closest.

    From many small draws, each drawn towards the points it already agrees with; a draw without a wrong point finds the
    fit that the right ones share. The same measurements give the same draws.

    Source: Rousseeuw and Van Driessen, Computing LTS regression for large data sets, 2006.
    """
    count, rows_NP, draw = len(b_N), a_NP / b_N[:, None], np.random.default_rng(0)
    trusted, smallest = count - max(1, count // 4), 1e-3
    best_N, least = np.zeros(count), np.inf
    for _ in range(_DRAWS):
        chosen = draw.choice(count, len(columns) + 1, replace=False)
        for _ in range(_STEPS):
            x_P = _solve(rows_NP[chosen], np.ones(len(chosen)), columns, signed)
            errors_N: Array = np.abs(np.log(np.maximum(rows_NP @ x_P, smallest)))
            chosen = np.argsort(errors_N, kind="stable")[:trusted]
        miss = float((errors_N[chosen] ** 2).sum())
        if miss < least:
            best_N, least = errors_N, miss
    return best_N


def _standard_errors(rows_NP: Array, x_P: Array, columns: Sequence[str], freedom: int) -> dict[str, float | None]:
    free = [index for index, value in enumerate(x_P) if value != 0.0]
    errors: dict[str, float | None] = dict.fromkeys(columns)
    if freedom <= 0 or not free:
        return errors
    residuals_N = rows_NP @ x_P - 1.0
    variance = float(residuals_N @ residuals_N) / freedom
    spread = np.linalg.pinv(rows_NP[:, free].T @ rows_NP[:, free])
    for position, index in enumerate(free):
        errors[columns[index]] = float(np.sqrt(variance * max(0.0, float(spread[position, position]))))
    return errors

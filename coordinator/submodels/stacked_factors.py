"""Sums of products of factors, kept as factors: stacked, and compressed by way of a small core, never multiplied out.

[u1 | u2] [v1; v2] = u1 v1 + u2 v2, so that a sum of low ranks is a product of a larger one. With u = Q1 R1 and
v^T = Q2 R2 its singular values are those of R1 R2^T, which is as small as the ranks are.
"""

# Dims: O outputs, I inputs, K components stacked, R components kept.

from __future__ import annotations

import numpy as np

from coordinator.submodels.spectrum import Spectrum, one_blas_thread

ROUNDING = 1e-9
"""Components below this share of the largest are rounding of float64 sums of float32 factors."""


class FactorStack:
    """A sum of weighted products u v of one layer, in float64, in the order they are added.

    Args:
        shape: [O, I] of the products.
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self._shape, self._left, self._right = shape, list[np.ndarray](), list[np.ndarray]()
        self._columns = 0

    def add(self, u_OR: np.ndarray, v_RI: np.ndarray, weight: float | np.ndarray = 1.0) -> None:
        """Add ``weight`` times u v; a weight for each component where it is an array [R].

        Raises:
            ValueError: factors that do not fit each other or the layer.
        """
        if u_OR.shape != (self._shape[0], len(v_RI)) or v_RI.shape[1:] != self._shape[1:]:
            raise ValueError(f"factors {list(u_OR.shape)} and {list(v_RI.shape)} of a layer {list(self._shape)}")
        self._left.append(u_OR.astype(np.float64) * weight)
        self._right.append(v_RI.astype(np.float64))
        self._columns += len(v_RI)
        if self._columns > 2 * min(self._shape):  # as many devices as there are: memory stays that of two layers
            kept = self.spectrum()
            self._left, self._right, self._columns = [kept.left_NR], [kept.right_RM], len(kept.values_R)

    def scale(self, factor: float) -> None:
        """Multiply the sum so far with ``factor``."""
        self._left = [part * factor for part in self._left]

    def spectrum(self, rank: int = 0) -> Spectrum:
        """The sum's components, largest first: all that are more than rounding, at most ``rank`` of them; 0: no bound.

        A sum of nothing but zeros has none.
        """
        rows, columns = self._shape
        if not self._columns:
            return Spectrum(np.zeros((rows, 0)), np.zeros((0, columns)), np.zeros(0))
        from scipy import linalg

        with one_blas_thread():
            left_q, left_r = linalg.qr(np.concatenate(self._left, axis=1), mode="economic", check_finite=False)
            right_q, right_r = linalg.qr(np.concatenate(self._right).T, mode="economic", check_finite=False)
            p, values, q = linalg.svd(left_r @ right_r.T, full_matrices=False, check_finite=False)
            kept = int((values > ROUNDING * values[0]).sum()) if values[0] > 0 else 0
            kept = min(kept, rank) if rank else kept
            root = np.sqrt(values[:kept])
            left, right = left_q @ (p[:, :kept] * root), (root[:, None] * q[:kept]) @ right_q.T
        # A pair of vectors may turn about together: the largest entry of the left one is positive.
        peaks = np.sign(left[np.argmax(np.abs(left), axis=0), np.arange(kept)])
        return Spectrum(left * peaks, peaks[:, None] * right, values[:kept])

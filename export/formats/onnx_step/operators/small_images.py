"""Convolutions on small images as products: ONNX Runtime spends more on each image and group than on sums.

Measured on x86-64 with ONNX Runtime 1.32, one thread, batch 32: the weight gradient of 576 x 96 pointwise filters on
one position takes 0.09 ms for 1.11 as one product per image; a depthwise kernel of 5 x 5 on 240 channels of 2 x 2 takes
0.56 for 4.5, of 3 x 3 on 88 of 4 x 4 0.44 for 1.3.

Legend: N batch, C input channels, K output channels, T kernel taps, P positions of the input, Q of the output.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from export.formats.onnx_step.operators.geometry import Window
from export.formats.onnx_step.translation import Translation, product

_MOST_SHARE = 128
"""Products of P * Q entries for each channel beat sums over T taps up to so many times T (measured)."""
_COPIED_SHARE = 4
"""Operands of one product for all images are copied first: worth it from so many results for each entry (measured)."""


class SmallImage:
    """One convolution whose windows of ``image`` give ``positions``; see the functions for what ``window`` may be."""

    def __init__(self, t: Translation, window: Window, image: Sequence[int], positions: Sequence[int]) -> None:
        self._t, self._make = t, t.make.node
        self._window, self._image, self._positions = window, list(image), list(positions)

    # One window, which is the whole image: a linear layer.

    def whole(self, x: str, weight: str, bias: str, filters: int, entries: int) -> str:
        """Args: entries: of an image, C * T."""
        rows, columns = self._flat(x, entries), self._flat(weight, entries)
        operands = [rows, columns, bias] if bias else [rows, columns]
        return self._make("Reshape", self._make("Gemm", *operands, transB=1), [-1, filters, *self._positions])

    def whole_backward(self, dy: str, weight: str, filters: int, entries: int) -> str:
        dx = self._make("Gemm", self._flat(dy, filters), self._flat(weight, entries))
        return self._make("Reshape", dx, [-1, entries // product(self._image), *self._image])

    # A kernel for each channel.

    def depthwise(self, x: str, weight: str, bias: str, channels: int) -> str:
        y = self._scaled(x, weight, channels) if self._is_scaling() else self._per_channel(x, weight, channels)
        return self._make("Add", y, self._broadcast(bias, channels)) if bias else y

    def depthwise_backward(self, dy: str, weight: str, channels: int) -> str:
        if self._is_scaling():
            return self._scaled(dy, weight, channels)
        return self._per_channel(dy, weight, channels, is_backward=True)

    def is_cheap_depthwise(self) -> bool:
        """Whether :meth:`depthwise` is faster than the runtime's own."""
        return self._is_scaling() or product(self._image) * product(self._positions) <= _MOST_SHARE * self._window.taps

    def _is_scaling(self) -> bool:
        return self._window.is_pointwise() and max(self._window.stride) == 1

    def _scaled(self, x: str, weight: str, channels: int) -> str:
        return self._make("Mul", x, self._broadcast(weight, channels))

    def _broadcast(self, values: str, channels: int) -> str:
        return self._make("Reshape", values, [1, channels, *[1] * self._window.rank])

    def _per_channel(self, x: str, weight: str, channels: int, *, is_backward: bool = False) -> str:
        """[C, N, P] @ [C, P, Q], each channel's matrix from its taps and zeros; backward with it transposed."""
        taps_PQ = _tap_between(self._window, self._image, self._positions)
        (taps, result) = (taps_PQ.T, self._image) if is_backward else (taps_PQ, self._positions)
        flat = self._make("Reshape", weight, [channels, self._window.taps])
        with_zero = self._make("Concat", flat, np.zeros((channels, 1), np.float32), axis=1)
        matrices = self._make("Gather", with_zero, np.ascontiguousarray(taps), axis=1)
        order = [1, 0, *range(2, 2 + self._window.rank)]
        rows = self._make("Reshape", self._make("Transpose", x, perm=order), [channels, -1, taps.shape[0]])
        y = self._make("Reshape", self._make("MatMul", rows, matrices), [channels, -1, *result])
        return self._make("Transpose", y, perm=order)

    def _flat(self, value: str, width: int) -> str:
        return self._make("Reshape", value, [-1, width])


def one_product(t: Translation, x: str, dy: str, channels: int, filters: int, rank: int) -> str:
    """dL/dW [K, C] of a pointwise convolution: dy and x with their channels last, in one product."""
    order = [0, *range(2, 2 + rank), 1]
    left = t.make.node("Reshape", t.make.node("Transpose", dy, perm=order), [-1, filters])
    right = t.make.node("Reshape", t.make.node("Transpose", x, perm=order), [-1, channels])
    return t.make.node("Gemm", left, right, transA=1)


def is_one_product(channels: int, filters: int, count: int) -> bool:
    """Whether :func:`one_product` beats one product per image of ``count`` positions."""
    return _COPIED_SHARE * count * (channels + filters) <= channels * filters


def _tap_between(window: Window, image: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """[P, Q] of which tap lies on an input where an output is computed; ``window.taps``: none."""
    taps = np.full((product(image), product(positions)), window.taps, np.int64)
    for q, place in enumerate(np.ndindex(*positions)):
        for tap, steps in enumerate(itertools.product(*(range(k) for k in window.kernel))):
            at = [place[d] * window.stride[d] + window.offset(d, step) for d, step in enumerate(steps)]
            if all(0 <= p < size for p, size in zip(at, image, strict=True)):
                taps[np.ravel_multi_index(at, tuple(image)), q] = tap
    return taps

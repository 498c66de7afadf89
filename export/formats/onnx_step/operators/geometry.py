"""How a convolution's kernel moves over an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from export.formats.onnx_step.translation import product


@dataclass(frozen=True)
class Window:
    """All lists have one entry per spatial dimension.

    Attributes:
        before, after: padding at the two ends.
    """

    kernel: list[int]
    stride: list[int]
    before: list[int]
    after: list[int]
    dilation: list[int]
    groups: int

    @classmethod
    def padded(
        cls,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> Window:
        """With the same padding at both ends."""
        return cls(list(kernel), list(stride), list(padding), list(padding), list(dilation), groups)

    @property
    def taps(self) -> int:
        return product(self.kernel)

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def attributes(self) -> dict[str, Any]:
        """Of an ONNX convolution, plain or transposed."""
        return {
            "strides": self.stride,
            "pads": [*self.before, *self.after],
            "dilations": self.dilation,
            "group": self.groups,
        }

    def offset(self, dim: int, tap: int) -> int:
        """Input position that ``tap`` meets at output position 0."""
        return tap * self.dilation[dim] - self.before[dim]

    def unreached(self, image: Sequence[int]) -> list[int]:
        """Last positions of ``image`` that no window comes to, the output padding of the transposed convolution."""
        sizes = zip(image, self.before, self.after, self.dilation, self.kernel, self.stride, strict=True)
        return [(size + b + a - d * (k - 1) - 1) % step for size, b, a, d, k, step in sizes]

    def is_padded(self) -> bool:
        return any(self.before) or any(self.after)

    def is_pointwise(self) -> bool:
        """One tap, no padding: a matrix product over (possibly strided) positions."""
        return self.taps == 1 and not self.is_padded()

    def is_tiling(self, image: Sequence[int]) -> bool:
        """Whether the windows cut the image into patches without overlap or rest."""
        exact = all(size % k == 0 for size, k in zip(image, self.kernel, strict=True))
        return self.kernel == self.stride and not self.is_padded() and max(self.dilation) == 1 and exact

    def is_whole(self, image: Sequence[int]) -> bool:
        """Whether the one window is the image."""
        return self.kernel == list(image) and not self.is_padded() and max(self.dilation) == 1

    def met(self, image: Sequence[int], positions: Sequence[int]) -> tuple[Window, list[int]]:
        """The window of those taps that meet the image anywhere, and the first of them; a dilated one stays as it is.

        On a small image most taps of a large kernel only ever meet padding: on one of 1 x 1, all but one.
        """
        kernel, before, after, first = list(self.kernel), list(self.before), list(self.after), [0] * self.rank
        for dim, (size, count) in enumerate(zip(image, positions, strict=True)):
            if self.dilation[dim] != 1:
                continue
            reach = (count - 1) * self.stride[dim]
            low = max(0, self.before[dim] - reach)
            high = min(self.kernel[dim] - 1, self.before[dim] + size - 1)
            if high < low:  # nothing but padding is ever met
                continue
            first[dim], kernel[dim], before[dim] = low, high - low + 1, self.before[dim] - low
            after[dim] = max(0, reach + kernel[dim] - size - before[dim])
        return replace(self, kernel=kernel, before=before, after=after), first

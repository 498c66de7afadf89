"""What a value of the rewritten program is: a tensor, or a promise of one that costs nothing until somebody needs it.

Images stay in [N, H, W, C] from operator to operator and transposes stay unwritten, because most users read them as
they are; :func:`tensor_of` writes the value out where one does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import SymInt, Tensor

from export.passes.operators import NATIVE


class Unsupported(Exception):
    """A rewrite's answer to an operation that would be wrong on the device: why, and what to use instead."""

    def __init__(self, reason: str, instead: str) -> None:
        super().__init__(reason)
        self.reason, self.instead = reason, instead


@dataclass
class Image:
    """A 4-D value [N, C, H, W] held as ``pixels`` [N, H, W, C]."""

    pixels: Tensor
    _written: Tensor | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[Any, ...]:
        """As torch sees it: (N, C, H, W)."""
        n, h, w, c = self.pixels.shape
        return (n, c, h, w)

    def tensor(self) -> Tensor:
        """The value in torch's layout; written once."""
        if self._written is None:
            n, h, w, c = self.pixels.shape
            one_pixel = _is(h, 1) and _is(w, 1)
            self._written = self.pixels.reshape(n, c, 1, 1) if one_pixel else NATIVE.permute(self.pixels, [0, 3, 1, 2])
        return self._written


@dataclass
class Transposed:
    """``base`` with its last two dimensions exchanged."""

    base: Tensor
    _written: Tensor | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The transposed shape."""
        return (*self.base.shape[:-2], self.base.shape[-1], self.base.shape[-2])

    def tensor(self) -> Tensor:
        """The value written out; once."""
        if self._written is None:
            rank = self.base.dim()
            self._written = NATIVE.permute(self.base, [*range(rank - 2), rank - 1, rank - 2])
        return self._written


@dataclass(frozen=True)
class SparseWeight:
    """Kept values and their places: stands for a weight of ``whole`` shape, [O, I] or [O, C, R, S].

    Attributes:
        name: of the parameter.
        values: [capacity]
        starts: [O + 1] int32
        columns: [capacity] int32
        is_transposed: it is read as [I, O].
    """

    name: str
    values: Tensor
    starts: Tensor
    columns: Tensor
    whole: tuple[int, ...]
    is_transposed: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """As torch sees it."""
        return self.whole[::-1] if self.is_transposed else self.whole

    @property
    def places(self) -> tuple[Tensor, Tensor]:
        """Starts and columns."""
        return self.starts, self.columns

    def transposed(self) -> SparseWeight:
        """The transpose, of a matrix."""
        return replace(self, is_transposed=not self.is_transposed)

    def tensor(self) -> Tensor:
        """Never: there is no whole weight."""
        raise Unsupported(
            "its weight is held as kept values, and something else than a linear layer or a convolution of stride 1 "
            "and one group reads it",
            "the dense form of this layer",
        )


@dataclass
class PooledMaximum:
    """Stands for the indices of a max-pool: its backward pass finds the maxima again from the pooled values."""

    pixels: Tensor


Value = Tensor | Image | Transposed | SparseWeight


def tensor_of(value: Any) -> Any:
    """``value`` as a tensor in torch's layout; anything that is no value is given back as it is."""
    return value.tensor() if isinstance(value, Image | Transposed | SparseWeight) else value


def image_of(value: Any) -> Image:
    """``value`` [N, C, H, W] as an image."""
    if isinstance(value, Image):
        return value
    tensor = tensor_of(value)
    n, c, h, w = tensor.shape
    if _is(h, 1) and _is(w, 1):
        return Image(tensor.reshape(n, 1, 1, c), tensor)
    return Image(NATIVE.permute(tensor, [0, 2, 3, 1]), tensor)


def _is(size: int | SymInt, number: int) -> bool:
    return isinstance(size, int) and size == number

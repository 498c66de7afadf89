"""ATen operations that draw random numbers, written out in numbers that are taken from elsewhere.

Eager torch and traced torch reach different ones (``dropout`` is ``bernoulli_`` in one, ``native_dropout`` in the
other): an element is kept where the draw with probability 1 - p is true in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

ATEN = torch.ops.aten


@dataclass(frozen=True)
class Kind:
    """What is drawn: ``bool`` with a probability, or ``float32`` uniform in [0, 1).

    Attributes:
        more: sizes after those of the drawn tensor: 2 where each of its numbers takes a pair.
    """

    dtype: Literal["bool", "float32"] = "float32"
    probability: float = 0.0
    more: tuple[int, ...] = ()


Taken = Callable[[Kind, Sequence[Any]], Tensor]
"""(kind, sizes of the drawn tensor) -> the numbers."""

_UNIFORM, _PAIR = Kind(), Kind(more=(2,))


def _own(fed: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor that the module may write into."""
    return fed.clone() if fed.dtype == dtype else fed.to(dtype)


def _bernoulli(take: Taken, like: Tensor, p: float) -> Tensor:
    return take(Kind("bool", float(p)), like.shape).to(like.dtype)


def _below(take: Taken, p: Tensor) -> Tensor:
    return (take(_UNIFORM, p.shape).to(p.dtype) < p).to(p.dtype)


def _normal(take: Taken, sizes: Sequence[Any], dtype: torch.dtype) -> Tensor:
    """Source: Box and Muller, "A note on the generation of random normal deviates", 1958."""
    pair = take(_PAIR, sizes).to(dtype)
    return torch.sqrt(-2.0 * torch.log(1.0 - pair[..., 0])) * torch.cos(2.0 * math.pi * pair[..., 1])


def native_dropout(take: Taken, x: Tensor, p: float, train: bool | None = True) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    kept = take(Kind("bool", 1 - p), x.shape)
    return x * (kept.to(x.dtype) / (1 - p)), kept


def native_dropout_backward(take: Taken, dy: Tensor, kept: Tensor, scale: float) -> Tensor:
    return dy * (kept.to(dy.dtype) * scale)


def bernoulli_float(take: Taken, x: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    return x.copy_(_bernoulli(take, x, p))


def bernoulli_tensor(take: Taken, x: Tensor, p: Tensor, *, generator: Any = None) -> Tensor:
    return x.copy_(_below(take, p.expand(x.shape)))


def bernoulli_p(take: Taken, x: Tensor, p: float, *, generator: Any = None) -> Tensor:
    return _bernoulli(take, x, p)


def bernoulli(take: Taken, p: Tensor, *, generator: Any = None) -> Tensor:
    return _below(take, p)


def rand(take: Taken, sizes: Sequence[Any], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return _own(take(_UNIFORM, sizes), dtype or torch.get_default_dtype())


def rand_like(take: Taken, x: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return _own(take(_UNIFORM, x.shape), dtype or x.dtype)


def uniform_(take: Taken, x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Tensor:
    return x.copy_(low + (high - low) * take(_UNIFORM, x.shape).to(x.dtype))


def randn(take: Taken, sizes: Sequence[Any], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return _normal(take, sizes, dtype or torch.get_default_dtype())


def randn_like(take: Taken, x: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return _normal(take, x.shape, dtype or x.dtype)


def normal_(take: Taken, x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Tensor:
    return x.copy_(mean + std * _normal(take, x.shape, x.dtype))


def normal(
    take: Taken, mean: float, std: float, sizes: Sequence[Any], *, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    return mean + std * _normal(take, sizes, dtype or torch.get_default_dtype())


def rrelu(
    take: Taken,
    x: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    *,
    generator: Any = None,
) -> Tensor:
    if not training:
        return torch.where(x > 0, x, x * ((lower + upper) / 2))
    slope = lower + (upper - lower) * take(_UNIFORM, x.shape).to(x.dtype)
    slope = torch.where(x > 0, torch.ones_like(slope), slope)
    noise.copy_(slope)
    return x * slope


def rrelu_(take: Taken, x: Tensor, noise: Tensor, *more: Any, **named: Any) -> Tensor:
    return x.copy_(rrelu(take, x, noise, *more, **named))


def rrelu_backward(
    take: Taken, dy: Tensor, x: Tensor, noise: Tensor, lower: float, upper: float, training: bool, is_result: bool
) -> Tensor:
    if training:
        return dy * noise
    return torch.where(x > 0, dy, dy * ((lower + upper) / 2))


WRITTEN_OUT: dict[Any, Callable[..., Any]] = {
    ATEN.native_dropout.default: native_dropout,
    ATEN.native_dropout_backward.default: native_dropout_backward,
    ATEN.bernoulli.default: bernoulli,
    ATEN.bernoulli.p: bernoulli_p,
    ATEN.bernoulli_.float: bernoulli_float,
    ATEN.bernoulli_.Tensor: bernoulli_tensor,
    ATEN.rand.default: rand,
    ATEN.rand.generator: rand,
    ATEN.rand_like.default: rand_like,
    ATEN.uniform_.default: uniform_,
    ATEN.randn.default: randn,
    ATEN.randn.generator: randn,
    ATEN.randn_like.default: randn_like,
    ATEN.normal_.default: normal_,
    ATEN.normal.float_float: normal,
    ATEN.rrelu_with_noise.default: rrelu,
    ATEN.rrelu_with_noise_.default: rrelu_,
    ATEN.rrelu_with_noise_backward.default: rrelu_backward,
}
"""Operator -> function of ``take`` and its arguments; generators among them are not asked."""

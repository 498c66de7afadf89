"""The large linear weights of one session while it steps: what it received, and the factors of what was added since.

The gradient of a linear layer's weight is a product of two thin matrices: the batch's output gradients and its inputs.
After t steps of SGD without decay the weight is ``W0 - sum_i a_i D_i^T X_i`` and its momentum ``sum_i p_i D_i^T X_i``,
with scalars a and p. While the D_i and X_i together have few rows, they are kept and the sum is not: a product with the
weight is one with W0 and two thin ones, and nothing of the weight's size is written before the end.

Once there are too many rows, weight and momentum are written out, and every later step multiplies its two factors
straight into the momentum. That is held divided by its decay since it was last brought up to date, which is what makes
adding a product all there is to do.

With bfloat16 products the factors are kept in it, and so is W0 beside itself; sums, weight and momentum are float32.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

MOMENTUM = "#momentum"

KEPT_SHARE = 4
"""Factors are kept up to a quarter as many rows as the weight's smaller side has. Measured on a busy x86-64 core, 2048
by 2048 at batch 32: thin products with 240 rows take 1.5 ms and the one product at the end 2.8 ms a step, the pass over
the momentum that both replace 9 ms."""

SOON_FULL = 4
"""Factors of steps so large that fewer of them have room are written out at once: they would be soon."""

ROWS = 512
"""Of a weight that are updated at a time, while their momentum is in a core's cache."""

LEAST_SCALE = 1e-3
"""Momentum whose decay since it was brought up to date is less than this is brought up to date."""

Factors = Sequence[tuple[Tensor, Tensor]]
"""Of one step: output gradients [B, O] and inputs [B, I] of every call of the layer."""


class LargeWeights:
    """Weights of one session, from the load of its state to the next.

    Args:
        state: of the session; a weight and its momentum there are up to date after :meth:`settle`. The momentum of one
            whose factors are kept need not be there.

    Attributes:
        dtype: of the factors of products.
        is_in_product: whether a product is being made.
    """

    def __init__(self, state: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> None:
        self._state, self.dtype = state, dtype
        self._converted: dict[str, Tensor] = {}
        self._kept: dict[str, _Kept] = {}
        self._scales: dict[str, float] = {}
        self.is_in_product = False

    def keep(self, name: str, *, has_momentum: bool) -> None:
        """Keep the factors of the weight ``name``, whose momentum is zero, until :meth:`settle`."""
        self._kept[name] = _Kept(has_momentum)

    def forward(self, name: str, weight: Tensor, x: Tensor) -> Tensor:
        """x W^T, float32 [..., O]."""
        self.is_in_product = True
        try:
            x = x.to(self.dtype)
            if x.dim() != 2:
                self.settle(name)
                return torch.nn.functional.linear(x, self._factor(name, self._state[name])).float()
            if self.dtype != torch.float32:
                y_BO = torch.mm(x, self._factor(name, weight).t()).float()
            else:
                # The weight first: two thirds of the time of the other order at small batches.
                y_BO = torch.mm(weight, x.t().contiguous()).t()
            return self._kept[name].corrected(y_BO, x, is_forward=True) if name in self._kept else y_BO
        finally:
            self.is_in_product = False

    def backward(self, name: str, weight: Tensor, d: Tensor) -> Tensor:
        """d W, float32 [..., I]."""
        self.is_in_product = True
        try:
            d = d.to(self.dtype)
            dx = (d @ self._factor(name, weight)).float()
            return self._kept[name].corrected(dx, d, is_forward=False) if name in self._kept else dx
        finally:
            self.is_in_product = False

    def step(self, name: str, factors: Factors, lr: float, momentum: float | None) -> None:
        """Move the weight ``name`` by the gradient that ``factors`` make.

        Args:
            momentum: its decay in a step; None where there is none.
        """
        factors = [(d_BO.to(self.dtype), x_BI.to(self.dtype)) for d_BO, x_BI in factors]
        weight = self._state[name]
        if (kept := self._kept.get(name)) is not None:
            most = min(weight.shape) // KEPT_SHARE
            rows = sum(len(d_BO) for d_BO, _ in factors)
            if kept.count + rows <= most and rows * SOON_FULL <= most:
                kept.add(factors, lr, momentum)
                return
            self.settle(name)
            weight = self._state[name]
        self._converted.pop(name, None)
        terms = [(d_BO.t().contiguous(), x_BI) for d_BO, x_BI in factors]
        if momentum is None:
            for d_OB, x_BI in terms:
                _add_product(weight, d_OB, x_BI, -lr)
            return
        slot, scale = self._state[name + MOMENTUM], self._scales.get(name, 1.0) * momentum
        if scale < LEAST_SCALE:
            slot.mul_(scale)
            scale = 1.0
        for first in range(0, len(weight), ROWS):
            rows_ = slice(first, first + ROWS)
            for d_OB, x_BI in terms:
                _add_product(slot[rows_], d_OB[rows_], x_BI, 1.0 / scale)
            weight[rows_].add_(slot[rows_], alpha=-lr * scale)
        self._scales[name] = scale

    def settle_in(self, name: str, values: dict[str, Tensor]) -> None:
        """As :meth:`settle`; ``values``, which the state's tensors were taken for, has them as they are then."""
        self.settle(name)
        self._converted.pop(name, None)
        for entry in (name, name + MOMENTUM):
            if entry in self._state:
                values[entry] = self._state[entry]

    def settle(self, name: str) -> None:
        """Bring the weight ``name`` and its momentum up to date in the state; factors are not kept any longer."""
        if (scale := self._scales.pop(name, 1.0)) != 1.0:
            self._state[name + MOMENTUM].mul_(scale)
        if (kept := self._kept.pop(name, None)) is None:
            return
        self._converted.pop(name, None)
        weight = self._state[name]
        if kept.has_momentum:
            self._state[name + MOMENTUM] = kept.sum_into(torch.zeros_like(weight), kept.momenta)
        self._state[name] = kept.sum_into(weight, -kept.moved)

    def weight(self, name: str, out: Tensor | None = None) -> Tensor:
        """The weight ``name`` as it is, whether its factors are kept or not; not to be written to.

        Args:
            out: a tensor of its shape that takes it.
        """
        if (kept := self._kept.get(name)) is not None:
            return kept.sum_into(self._state[name], -kept.moved, out)
        return self._state[name] if out is None else out.copy_(self._state[name])

    def renewed(self, unchanged: Collection[str]) -> LargeWeights:
        """Those of a state that was loaded anew, but for the weights ``unchanged``."""
        new = LargeWeights(self._state, self.dtype)
        new._converted = {name: value for name, value in self._converted.items() if name in unchanged}
        return new

    def _factor(self, name: str, weight: Tensor) -> Tensor:
        """``weight``, which nobody writes to between steps, as a factor."""
        if self.dtype == weight.dtype:
            return weight
        if name not in self._converted:
            self._converted[name] = weight.detach().to(self.dtype)
        return self._converted[name]

    @property
    def kept(self) -> Collection[str]:
        """Weights whose factors are kept."""
        return self._kept.keys()

    def settle_kept(self) -> None:
        """As :meth:`settle`, every weight whose factors are kept."""
        for name in list(self._kept):
            self.settle(name)


@dataclass
class _Kept:
    """Factors of one weight's steps since it was received.

    Attributes:
        has_momentum: whether the rule has one.
        d: [rows, O], x: [rows, I]; the first ``count`` are in use.
        moved: float64 [count], ``a`` of each row; momenta: the same of ``p``.
    """

    has_momentum: bool
    count: int = 0
    d: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    x: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    moved: np.ndarray = field(default_factory=lambda: np.zeros(0))
    momenta: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def add(self, factors: Factors, lr: float, momentum: float | None) -> None:
        """Take one step's factors."""
        for d_BO, x_BI in factors:
            end = self.count + len(d_BO)
            self.d, self.x = _with_room(self.d, d_BO, self.count, end), _with_room(self.x, x_BI, self.count, end)
            self.d[self.count : end], self.x[self.count : end] = d_BO, x_BI
            self.count = end
        added = self.count - len(self.moved)
        self.momenta = np.concatenate([self.momenta * (momentum or 0.0), np.ones(added)])
        self.moved = np.concatenate([self.moved, np.zeros(added)]) + lr * self.momenta

    def corrected(self, product: Tensor, rows: Tensor, *, is_forward: bool) -> Tensor:
        """``product`` with the weight as it was received, as one with the weight as it is."""
        if not self.count:
            return product
        first, second = (self.x, self.d) if is_forward else (self.d, self.x)
        inner = torch.mm(rows, first[: self.count].t()).mul_(_tensor(-self.moved))
        if inner.dtype == product.dtype:
            return torch.addmm(product, inner, second[: self.count])
        return product.add_(torch.mm(inner, second[: self.count]))

    def sum_into(self, weight: Tensor, coefficients: np.ndarray, out: Tensor | None = None) -> Tensor:
        """``weight`` plus the sum of coefficient times D^T X, in ``out`` or a tensor of its own."""
        if not self.count:
            return weight.clone() if out is None else out.copy_(weight)
        scaled = (self.d[: self.count] * _tensor(coefficients)[:, None]).to(self.d.dtype)
        if scaled.dtype == weight.dtype:
            return torch.addmm(weight, scaled.t(), self.x[: self.count], out=out)
        return torch.add(weight, torch.mm(scaled.t(), self.x[: self.count]), out=out)


def _add_product(total: Tensor, left: Tensor, right: Tensor, alpha: float) -> None:
    """total += alpha left right; ``total`` is float32."""
    if left.dtype == total.dtype:
        total.addmm_(left, right, alpha=alpha)
    else:
        total.add_(torch.mm(left, right), alpha=alpha)


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


def _with_room(kept: Tensor, added: Tensor, count: int, end: int) -> Tensor:
    """``kept``, or a larger one with its first ``count`` rows."""
    if len(kept) >= end:
        return kept
    larger = added.new_empty((max(end, 2 * count), added.shape[1]))
    if count:
        larger[:count] = kept[:count]
    return larger

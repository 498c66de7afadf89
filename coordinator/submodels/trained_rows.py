"""Layers of which some output channels are trained and the others stay: the forward pass is the whole layer's.

``weight`` has the rows that stay, ``rows`` those that are trained. The backward pass computes the gradient of ``rows``
alone, from the slice of the output's gradient that they made, and the optimizer holds state for them alone.
Source: Lin et al., "On-device training under 256KB memory" (MCUNetV3, NeurIPS 2022), its sparse tensor update; there
input channels are chosen, here output channels, which the server puts back by rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from edge.contracts.errors import PlanError

ATEN = torch.ops.aten
ROWS = "rows"
"""Name of the trained rows beside ``weight``, the others."""

Runs = tuple[tuple[int, int, bool], ...]
"""(first, end, whether they are trained) of consecutive output channels, in order; together all of them."""


def takes_rows(layer: nn.Module) -> bool:
    """Whether ``layer`` can be trained in part: a plain convolution of one or two dimensions, or a linear layer."""
    if type(layer) is nn.Linear:
        return True
    is_plain = type(layer) in (nn.Conv1d, nn.Conv2d)
    return is_plain and layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def runs_of(rows: Sequence[int], count: int) -> Runs:
    """The runs of ``count`` output channels of which ``rows``, ascending, are trained."""
    runs: list[tuple[int, int, bool]] = []
    trained = set(rows)
    for channel in range(count):
        is_trained = channel in trained
        if runs and runs[-1][2] == is_trained:
            runs[-1] = (runs[-1][0], channel + 1, is_trained)
        else:
            runs.append((channel, channel + 1, is_trained))
    return tuple(runs)


class PartlyTrained(nn.Module):
    """``dense`` with the output channels ``rows`` in a parameter of their own. Its bias is trained as the layer's is.

    Attributes:
        weight: [out - rows, in, ...], frozen.
        rows: [rows, in, ...].
    """

    def __init__(self, path: str, dense: nn.Module, rows: Sequence[int]) -> None:
        """Raises PlanError for a layer that cannot be trained in part, and for rows it does not have."""
        super().__init__()
        if not takes_rows(dense):
            raise PlanError(
                f"layer '{path}': rows of a {type(dense).__name__} are not trained apart, only those of a Linear or of "
                "a Conv1d or Conv2d without groups and with zeros around it; train it whole or not at all"
            )
        assert isinstance(dense, nn.Linear | nn.Conv1d | nn.Conv2d)
        count = dense.weight.shape[0]
        if list(rows) != sorted(set(rows)) or not rows or rows[0] < 0 or rows[-1] >= count or len(rows) == count:
            raise PlanError(f"layer '{path}': rows {list(rows)[:8]} of {count}; some of them expected, ascending")
        self.runs = runs_of(rows, count)
        self.window: tuple[list[int], list[int], list[int]] | None = None
        if not isinstance(dense, nn.Linear):
            assert not isinstance(dense.padding, str)
            self.window = (list(dense.stride), list(dense.padding), list(dense.dilation))
        whole = dense.weight.detach()
        self.weight = nn.Parameter(_picked(whole, self.runs, trained=False), requires_grad=False)
        self.rows = nn.Parameter(_picked(whole, self.runs, trained=True))
        self.register_parameter("bias", dense.bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _Product.apply(x, self.rows, self.weight, self.bias, self.runs, self.window)
        return y

    def extra_repr(self) -> str:
        return f"rows={self.rows.shape[0]} of {self.runs[-1][1]}"


def _picked(values: Tensor, runs: Runs, *, trained: bool, dim: int = 0) -> Tensor:
    """The channels of ``values`` that are trained, or the others."""
    parts = [values.narrow(dim, first, end - first) for first, end, is_trained in runs if is_trained == trained]
    return parts[0].clone() if len(parts) == 1 else torch.cat(parts, dim)


def whole_weight(rows: Tensor, rest: Tensor, runs: Runs) -> Tensor:
    """The layer's weight, channels in their order."""
    parts, taken = [], {True: 0, False: 0}
    for first, end, is_trained in runs:
        source = rows if is_trained else rest
        parts.append(source.narrow(0, taken[is_trained], end - first))
        taken[is_trained] += end - first
    return torch.cat(parts, 0)


class _Product(torch.autograd.Function):
    """The layer's product; autograd's own backward pass would compute the gradient of the whole weight first."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, rows: Tensor, rest: Tensor, bias: Tensor | None, runs: Runs, window: Any
    ) -> Tensor:
        weight = whole_weight(rows, rest, runs)
        ctx.save_for_backward(x, weight, rows)
        ctx.runs, ctx.window, ctx.has_bias = runs, window, bias is not None
        if window is None:
            return torch.nn.functional.linear(x, weight, bias)
        stride, padding, dilation = window
        y: Tensor = ATEN.convolution(x, weight, bias, stride, padding, dilation, False, [0] * len(stride), 1)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0]
        x, weight, rows = ctx.saved_tensors
        needed: tuple[bool, ...] = ctx.needs_input_grad
        wants_x, wants_rows, wants_bias = needed[0], needed[1], needed[3] and ctx.has_bias
        dim = gradient.dim() - 1 if ctx.window is None else 1
        trained = _sliced(gradient, ctx.runs, dim) if wants_rows else None
        dx = d_rows = d_bias = None
        if ctx.window is None:
            dx = gradient @ weight if wants_x else None
            if trained is not None:
                d_rows = trained.reshape(-1, trained.shape[-1]).t() @ x.reshape(-1, x.shape[-1])
            d_bias = gradient.reshape(-1, gradient.shape[-1]).sum(0) if wants_bias else None
            return dx, d_rows, None, d_bias, None, None
        stride, padding, dilation = ctx.window
        window = (stride, padding, dilation, False, [0] * len(stride), 1)
        if wants_x or wants_bias:
            wanted = [wants_x, False, wants_bias]
            sizes = [weight.shape[0]] if wants_bias else None
            dx, _, d_bias = ATEN.convolution_backward(gradient, x, weight, sizes, *window, wanted)
        if trained is not None:
            d_rows = ATEN.convolution_backward(trained, x, rows, None, *window, [False, True, False])[1]
        return dx if wants_x else None, d_rows, None, d_bias if wants_bias else None, None, None


def _sliced(gradient: Tensor, runs: Runs, dim: int) -> Tensor:
    """The part of an output's gradient that the trained rows made."""
    parts = [gradient.narrow(dim, first, end - first) for first, end, is_trained in runs if is_trained]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)

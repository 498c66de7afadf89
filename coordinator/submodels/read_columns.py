"""A linear layer that reads some of the inputs that come in: single columns behind a flatten, or inputs of the model.

Channels go with all that makes them; a column of which nothing is read can only be passed over where it is read. What
comes in is gathered once, and its gradient is gathered back with zeros for the columns passed over: a scatter, which
autograd would write, is slower in every runtime here and unknown to some.
"""

from __future__ import annotations

import hashlib
from typing import Any, cast

import torch
from torch import Tensor, nn

from coordinator.submodels.record import LayerCut
from edge.contracts.errors import PlanError


class _Gather(torch.autograd.Function):
    """``x[..., read]``; ``back`` holds, for every column of x, its place in the result, or one beyond the last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, read: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return x.index_select(-1, read)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        (back,) = ctx.saved_tensors
        (gradient,) = gradients
        nothing = gradient.new_zeros((*gradient.shape[:-1], 1))
        return torch.cat([gradient, nothing], -1).index_select(-1, back), None, None


class ReadingLinear(nn.Linear):
    """y = W x[read] + b; ``weight`` [outputs, columns read] and ``bias`` under their own names."""

    read: Tensor
    back: Tensor

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(_Gather.apply(input, self.read, self.back), self.weight, self.bias)

    def extra_repr(self) -> str:
        columns = hashlib.sha256(str(self.read.tolist()).encode()).hexdigest()[:12]
        return f"{super().extra_repr()}, reads={columns} of {len(self.back)}"


def read_positions(path: str, record: LayerCut) -> tuple[int, ...]:
    """Where, among the inputs that come in, those lie that are read.

    Raises:
        PlanError: one that does not come in.
    """
    read = record.read_idx or ()
    if record.in_idx is None:
        return read
    place = {column: position for position, column in enumerate(record.in_idx)}
    missing = [column for column in read if column not in place]
    if missing:
        raise PlanError(f"layer '{path}': columns {missing[:8]} are to be read but do not come in; cut its input wider")
    return tuple(place[column] for column in read)


def reading_linear(path: str, layer: nn.Linear, record: LayerCut, incoming: int) -> nn.Module:
    """``layer``, its weight narrowed already, reading what ``record`` says of ``incoming`` inputs."""
    read = torch.tensor(read_positions(path, record), dtype=torch.int64)
    back = torch.full((incoming,), len(read), dtype=torch.int64)
    back[read] = torch.arange(len(read))
    reading: Any = object.__new__(ReadingLinear)
    reading.__dict__ = {**layer.__dict__, "_buffers": dict(layer._buffers)}
    # Which columns they are is the cut's, not the model's: constants of the graph, in no checkpoint.
    reading.register_buffer("read", read, persistent=False)
    reading.register_buffer("back", back, persistent=False)
    return cast(nn.Module, reading)

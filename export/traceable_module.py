"""Layers that trace badly, given an equal forward that traces well. Parameters and names stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from export.factored_recurrent import factored_loop_forward
from export.gated_recurrent import gru_forward
from export.layered_recurrent import layered_forward
from export.recurrent import LSTMLoop, loop_forward, lstm_forward

LOOPS = frozenset({"lstm"})
"""Recurrent layers that every format takes as one operation (``apportion::lstm_layer``)."""


def traceable_module(module: nn.Module, loops: frozenset[str] = LOOPS) -> nn.Module:
    """``module`` itself, its layers' forwards replaced where a better one is known; call it on a copy.

    Args:
        loops: recurrent layers the format takes as one operation: ``lstm``, ``gru``, and ``lstm_factors``, an LSTM with
            a hidden matrix of factors; others are traced step by step, factors without their own multiplied out.
    """
    for part in module.modules():
        forward = _replacement(part, loops)
        if forward is not None:
            part.forward = MethodType(forward, part)
    return module


def is_loop(part: nn.Module) -> bool:
    """Whether the layer goes over time, as one operation or step by step."""
    return isinstance(part, nn.RNNBase | LSTMLoop)


def replaced_forwards(module: nn.Module, loops: frozenset[str] = LOOPS) -> dict[str, Callable[..., Any]]:
    """Path -> the forward that :func:`traceable_module` puts in place of the layer's own."""
    found = {name: _replacement(part, loops) for name, part in module.named_modules()}
    return {name: forward for name, forward in found.items() if forward is not None}


def _replacement(part: nn.Module, loops: frozenset[str]) -> Callable[..., Any] | None:
    if isinstance(part, _InstanceNorm):
        return _instance_norm
    if isinstance(part, nn.AdaptiveMaxPool2d) and not part.return_indices:
        return _adaptive_max_pool
    if isinstance(part, nn.GRU) and "gru" in loops:
        return gru_forward
    if isinstance(part, nn.LSTM) and "lstm" in loops:
        return lstm_forward
    if isinstance(part, nn.RNNBase) and part.dropout and part.num_layers > 1:
        return layered_forward
    if isinstance(part, LSTMLoop) and "lstm" in loops:
        return factored_loop_forward if "lstm_factors" in loops else loop_forward
    return None


def _instance_norm(self: _InstanceNorm, x: Tensor) -> Tensor:
    """A group norm with one channel per group.

    Torch folds the batch into the channels, which would make a per-channel operation depend on the batch size.
    """
    return F.group_norm(x, self.num_features, self.weight, self.bias, self.eps)


def _adaptive_max_pool(self: nn.AdaptiveMaxPool2d, x: Tensor) -> Tensor:
    """Plain max pooling where the windows are all of one size; else torch's own operation, which is refused."""
    wanted = self.output_size if isinstance(self.output_size, tuple) else (self.output_size, self.output_size)
    sizes = [size if count is None else count for size, count in zip(x.shape[-2:], wanted, strict=True)]
    if any(size % count for size, count in zip(x.shape[-2:], sizes, strict=True)):
        return F.adaptive_max_pool2d(x, self.output_size)
    return F.max_pool2d(x, [size // count for size, count in zip(x.shape[-2:], sizes, strict=True)])

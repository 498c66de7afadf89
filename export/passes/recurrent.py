"""LSTM layers and embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from export.passes.operators import NATIVE
from export.passes.rewriter import Unsupported, rewrites
from export.passes.values import tensor_of

ATEN = torch.ops.aten
LAYER = torch.ops.apportion


@rewrites(LAYER.lstm_layer.default)
def lstm(x: Any, w_ih: Any, w_hh: Any, bias: Any) -> tuple[Tensor, ...]:
    """One layer in one direction; see :mod:`export.recurrent`."""
    outputs: tuple[Tensor, ...] = NATIVE.lstm(*map(tensor_of, (x, w_ih, w_hh, bias)))
    return outputs


@rewrites(LAYER.lstm_layer_backward.default)
def lstm_backward(*args: Any) -> Tensor:
    """The gradient of the gates' inputs."""
    return NATIVE.lstm_backward(*map(tensor_of, args))


@rewrites(ATEN.embedding_dense_backward.default)
def embedding_backward(dy: Any, indices: Any, rows: int, padding: int, scaled: bool) -> Tensor:
    """Each row gets the sum of the gradients of its uses."""
    if scaled:
        raise Unsupported("an embedding whose gradient is scaled by frequency", "scale_grad_by_freq=False")
    return NATIVE.embedding_backward(tensor_of(dy), tensor_of(indices), rows, padding)

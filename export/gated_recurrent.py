"""A GRU layer as one traced operation, as :mod:`export.recurrent` does for the LSTM.

Legend: T steps, B batch, I inputs, H hidden units; gates in torch's order r, z, n. A step is
r, z = sigmoid(x W + h R), n = tanh(x W_n + r * c) with c = h R_n + b_n, and h' = n + z (h - n).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from export.layered_recurrent import layered_forward


def gru_forward(self: nn.GRU, x: Tensor, state: Tensor | None = None) -> Any:
    """``nn.GRU.forward`` through the layer operation; initial states take torch's own path."""
    if state is not None or not isinstance(x, Tensor) or x.dim() != 3:
        return layered_forward(self, x, state)
    steps = x.transpose(0, 1) if self.batch_first else x
    last = []
    for layer in range(self.num_layers):
        outputs = []
        for suffix in ("", "_reverse")[: 2 if self.bidirectional else 1]:
            names = ["weight_ih", "weight_hh"] + (["bias_ih", "bias_hh"] if self.bias else [])
            weights = [getattr(self, f"{name}_l{layer}{suffix}") for name in names] + [None] * (4 - len(names))
            y, *_ = gru_layer(steps.flip(0) if suffix else steps, *weights)
            last.append(y[-1])
            outputs.append(y.flip(0) if suffix else y)
        steps = torch.cat(outputs, 2) if self.bidirectional else outputs[0]
        if layer < self.num_layers - 1:
            steps = F.dropout(steps, self.dropout, self.training)
    return steps.transpose(0, 1) if self.batch_first else steps, torch.stack(last)


@torch.library.custom_op("apportion::gru_layer", mutates_args=())
def gru_layer(
    x_TBI: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One layer in one direction from a zero state.

    Returns:
        Outputs; then what the backward pass reads: r, z, n and c. Each [T, B, H].
    """
    raise NotImplementedError("gru_layer is traced and translated, never run")


@torch.library.custom_op("apportion::gru_layer_backward", mutates_args=())
def gru_layer_backward(
    dy_TBH: Tensor, y: Tensor, gate_r: Tensor, gate_z: Tensor, gate_n: Tensor, c: Tensor, w_hh: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of x W + b and of h R + b, each [T, B, 3H]."""
    raise NotImplementedError("gru_layer_backward is traced and translated, never run")


@gru_layer.register_fake
def _(x_TBI: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None) -> tuple[Tensor, ...]:
    shape = (x_TBI.shape[0], x_TBI.shape[1], w_hh.shape[1])
    return tuple(x_TBI.new_empty(shape) for _ in range(5))


@gru_layer_backward.register_fake
def _(dy_TBH: Tensor, *saved: Tensor) -> tuple[Tensor, Tensor]:
    shape = (*dy_TBH.shape[:2], 3 * dy_TBH.shape[2])
    return dy_TBH.new_empty(shape), dy_TBH.new_empty(shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x_TBI, w_ih, w_hh, b_ih, _ = inputs
    ctx.has_bias = b_ih is not None
    ctx.save_for_backward(x_TBI, w_ih, w_hh, *output)


def _backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x_TBI, w_ih, w_hh, y, *saved = ctx.saved_tensors
    from_input, from_state = torch.ops.apportion.gru_layer_backward(dy, y, *saved, w_hh)
    flat = from_input.reshape(-1, from_input.shape[2])
    dx = (flat @ w_ih).reshape(x_TBI.shape)
    dw_ih = flat.t() @ x_TBI.reshape(-1, x_TBI.shape[2])
    later, earlier = from_state[1:], y[:-1]
    dw_hh = later.reshape(-1, later.shape[2]).t() @ earlier.reshape(-1, earlier.shape[2])
    biases = (flat.sum(0), from_state.sum((0, 1))) if ctx.has_bias else (None, None)
    return dx, dw_ih, dw_hh, *biases


gru_layer.register_autograd(_backward, setup_context=_setup)

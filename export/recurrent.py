"""An LSTM layer as one traced operation, so that formats can write its loop well instead of 50 nodes per time step.

Traced only: the formats translate ``apportion::lstm_layer`` and ``apportion::lstm_layer_backward``; torch itself runs
``nn.LSTM`` in the parity gate. A module that computes its gate matrices itself, of factors for one, holds an
:class:`LSTMLoop`. Legend: T steps, B batch, I inputs, H hidden units; gates in torch's order i, f, g, o.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from export.layered_recurrent import layered_forward


def lstm_forward(self: nn.LSTM, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> Any:
    """``nn.LSTM.forward`` through the layer operation; initial states and projections take torch's own path."""
    if state is not None or self.proj_size or not isinstance(x, Tensor) or x.dim() != 3:
        return layered_forward(self, x, state)
    steps = x.transpose(0, 1) if self.batch_first else x
    last_hidden, last_cell = [], []
    for layer in range(self.num_layers):
        outputs = []
        for suffix in ("", "_reverse")[: 2 if self.bidirectional else 1]:
            weights = [getattr(self, f"{kind}_l{layer}{suffix}") for kind in ("weight_ih", "weight_hh")]
            bias = None
            if self.bias:
                bias = getattr(self, f"bias_ih_l{layer}{suffix}") + getattr(self, f"bias_hh_l{layer}{suffix}")
            y, cells, *_ = lstm_layer(steps.flip(0) if suffix else steps, *weights, bias)
            last_hidden.append(y[-1])
            last_cell.append(cells[-1])
            outputs.append(y.flip(0) if suffix else y)
        steps = torch.cat(outputs, 2) if self.bidirectional else outputs[0]
        if layer < self.num_layers - 1:
            steps = F.dropout(steps, self.dropout, self.training)
    y = steps.transpose(0, 1) if self.batch_first else steps
    return y, (torch.stack(last_hidden), torch.stack(last_cell))


class LSTMLoop(nn.Module):
    """One LSTM layer in one direction over matrices it is given; holds no parameters."""

    def forward(
        self,
        x_TBI: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None = None,
        b_hh: Tensor | None = None,
        *,
        v_hh: Tensor | None = None,
        state: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs [T, B, H] from ``state`` or from zeros, then the last output and the last cell, each [B, H].

        With ``v_hh`` [R, H] the hidden matrix is ``w_hh`` [4H, R] times it.
        """
        w_hh = w_hh if v_hh is None else w_hh @ v_hh
        if state is None:
            zeros = x_TBI.new_zeros(x_TBI.shape[1], w_hh.shape[1])
            state = zeros, zeros
        weights = [w for w in (w_ih, w_hh, b_ih, b_hh) if w is not None]
        start = [part.unsqueeze(0) for part in state]
        has_bias, layers, dropout = b_ih is not None, 1, 0.0
        y, last, cell = torch._VF.lstm(x_TBI, start, weights, has_bias, layers, dropout, self.training, False, False)
        return y, last[0], cell[0]


def loop_forward(
    self: LSTMLoop,
    x_TBI: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    *,
    v_hh: Tensor | None = None,
    state: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``LSTMLoop.forward`` through the layer operation; initial states take torch's own path."""
    if state is not None:
        return type(self).forward(self, x_TBI, w_ih, w_hh, b_ih, b_hh, v_hh=v_hh, state=state)
    w_hh = w_hh if v_hh is None else w_hh @ v_hh
    bias = b_ih if b_ih is None or b_hh is None else b_ih + b_hh
    y, cells, *_ = lstm_layer(x_TBI, w_ih, w_hh, bias)
    return y, y[-1], cells[-1]


@torch.library.custom_op("apportion::lstm_layer", mutates_args=())
def lstm_layer(
    x_TBI: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """One layer in one direction from zero states.

    Returns:
        Outputs and cells, each [T, B, H]; then what the backward pass reads, each [T, B, H]: gates i, f, g, o and
        tanh of the cells.
    """
    raise NotImplementedError("lstm_layer is traced and translated, never run")


@torch.library.custom_op("apportion::lstm_layer_backward", mutates_args=())
def lstm_layer_backward(
    dy_TBH: Tensor,
    dcells_TBH: Tensor | None,
    cells: Tensor,
    gate_i: Tensor,
    gate_f: Tensor,
    gate_g: Tensor,
    gate_o: Tensor,
    tanh_cells: Tensor,
    w_hh: Tensor,
) -> Tensor:
    """Gradient of the gates' inputs, [T, B, 4H]."""
    raise NotImplementedError("lstm_layer_backward is traced and translated, never run")


@lstm_layer.register_fake
def _(x_TBI: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    shape = (x_TBI.shape[0], x_TBI.shape[1], w_hh.shape[1])
    return tuple(x_TBI.new_empty(shape) for _ in range(7))


@lstm_layer_backward.register_fake
def _(dy_TBH: Tensor, *saved: Tensor | None) -> Tensor:
    return dy_TBH.new_empty((*dy_TBH.shape[:2], 4 * dy_TBH.shape[2]))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x_TBI, w_ih, w_hh, bias = inputs
    ctx.has_bias = bias is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x_TBI, w_ih, w_hh, *output)


def _backward(ctx: Any, dy: Tensor | None, dcells: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    x_TBI, w_ih, w_hh, y, cells, *saved = ctx.saved_tensors
    dy = torch.zeros_like(y) if dy is None else dy
    dgates_TBG = torch.ops.apportion.lstm_layer_backward(dy, dcells, cells, *saved, w_hh)
    flat = dgates_TBG.reshape(-1, dgates_TBG.shape[2])
    dx = (flat @ w_ih).reshape(x_TBI.shape)
    dw_ih = flat.t() @ x_TBI.reshape(-1, x_TBI.shape[2])
    later, earlier = dgates_TBG[1:], y[:-1]
    dw_hh = later.reshape(-1, later.shape[2]).t() @ earlier.reshape(-1, earlier.shape[2])
    return dx, dw_ih, dw_hh, flat.sum(0) if ctx.has_bias else None


lstm_layer.register_autograd(_backward, setup_context=_setup)

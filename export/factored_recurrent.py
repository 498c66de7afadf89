"""An LSTM layer whose hidden matrix is a product u v of low rank, one traced operation beside :mod:`export.recurrent`.

Every time step multiplies with v and then with u, fewer multiplications than with the whole matrix, and the gradients
of both come from two products over all steps. For formats that write the loop themselves; the others get u v.
Legend: T steps, B batch, I inputs, H hidden units, R rank; gates in torch's order i, f, g, o.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from export.recurrent import LSTMLoop, loop_forward


def factored_loop_forward(
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
    """``LSTMLoop.forward`` with two products per time step where these are fewer multiplications than one."""
    if v_hh is None or state is not None or w_hh.numel() + v_hh.numel() >= w_hh.shape[0] * v_hh.shape[1]:
        return loop_forward(self, x_TBI, w_ih, w_hh, b_ih, b_hh, v_hh=v_hh, state=state)
    bias = b_ih if b_ih is None or b_hh is None else b_ih + b_hh
    y, cells, *_ = lstm_factor_layer(x_TBI, w_ih, w_hh, v_hh, bias)
    return y, y[-1], cells[-1]


@torch.library.custom_op("apportion::lstm_factor_layer", mutates_args=())
def lstm_factor_layer(
    x_TBI: Tensor, w_ih: Tensor, u_hh: Tensor, v_hh: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """As ``lstm_layer``, with u [4H, R] and v [R, H] for the hidden matrix."""
    raise NotImplementedError("lstm_factor_layer is traced and translated, never run")


@torch.library.custom_op("apportion::lstm_factor_layer_backward", mutates_args=())
def lstm_factor_layer_backward(
    dy_TBH: Tensor,
    dcells_TBH: Tensor | None,
    cells: Tensor,
    gate_i: Tensor,
    gate_f: Tensor,
    gate_g: Tensor,
    gate_o: Tensor,
    tanh_cells: Tensor,
    u_hh: Tensor,
    v_hh: Tensor,
) -> Tensor:
    """Gradient of the gates' inputs, [T, B, 4H]."""
    raise NotImplementedError("lstm_factor_layer_backward is traced and translated, never run")


@lstm_factor_layer.register_fake
def _(x_TBI: Tensor, w_ih: Tensor, u_hh: Tensor, v_hh: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    shape = (x_TBI.shape[0], x_TBI.shape[1], v_hh.shape[1])
    return tuple(x_TBI.new_empty(shape) for _ in range(7))


@lstm_factor_layer_backward.register_fake
def _(dy_TBH: Tensor, *saved: Tensor | None) -> Tensor:
    return dy_TBH.new_empty((*dy_TBH.shape[:2], 4 * dy_TBH.shape[2]))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x_TBI, w_ih, u_hh, v_hh, bias = inputs
    ctx.has_bias = bias is not None
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x_TBI, w_ih, u_hh, v_hh, *output)


def _backward(ctx: Any, dy: Tensor | None, dcells: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    x_TBI, w_ih, u_hh, v_hh, y, cells, *saved = ctx.saved_tensors
    dy = torch.zeros_like(y) if dy is None else dy
    dgates_TBG = torch.ops.apportion.lstm_factor_layer_backward(dy, dcells, cells, *saved, u_hh, v_hh)
    flat = dgates_TBG.reshape(-1, dgates_TBG.shape[2])
    dx = (flat @ w_ih).reshape(x_TBI.shape)
    dw_ih = flat.t() @ x_TBI.reshape(-1, x_TBI.shape[2])
    later = dgates_TBG[1:].reshape(-1, dgates_TBG.shape[2])
    earlier = y[:-1].reshape(-1, y.shape[2])
    du = later.t() @ (earlier @ v_hh.t())
    dv = (later @ u_hh).t() @ earlier
    return dx, dw_ih, du, dv, flat.sum(0) if ctx.has_bias else None


lstm_factor_layer.register_autograd(_backward, setup_context=_setup)

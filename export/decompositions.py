"""Which ATen operations are written out in simpler ones while tracing; all others reach the formats whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions

ATEN = torch.ops.aten

_SPELLED_OUT = (
    # bookkeeping
    ATEN.detach, ATEN.t, ATEN.alias, ATEN.lift_fresh, ATEN.zeros_like, ATEN.ones_like, ATEN.new_zeros, ATEN.new_ones,
    ATEN.new_full, ATEN.new_empty, ATEN.zero, ATEN.fill, ATEN.transpose, ATEN.rsub, ATEN.unsafe_split,
    ATEN.unsafe_chunk,
    ATEN.narrow, ATEN.select_backward, ATEN.slice_backward, ATEN.unfold_backward, ATEN.masked_fill, ATEN.movedim,
    ATEN.baddbmm, ATEN.addcmul, ATEN.addcdiv, ATEN.lerp, ATEN.std_mean, ATEN.var_mean, ATEN.std, ATEN.var,
    ATEN.linalg_vector_norm, ATEN.tril, ATEN.triu, ATEN.trace, ATEN.mv, ATEN.dot, ATEN.addmv, ATEN.addbmm,
    # activations
    ATEN.elu, ATEN.elu_backward, ATEN.leaky_relu, ATEN.leaky_relu_backward, ATEN.silu_backward,
    ATEN.hardswish_backward, ATEN.hardsigmoid_backward, ATEN.hardtanh, ATEN.sigmoid_backward,
    ATEN.tanh_backward, ATEN.mish, ATEN.mish_backward, ATEN.log_sigmoid_forward, ATEN.log_sigmoid_backward,
    ATEN._prelu_kernel, ATEN._prelu_kernel_backward, ATEN.softshrink, ATEN.softshrink_backward, ATEN.hardshrink,
    ATEN.hardshrink_backward, ATEN.threshold, ATEN.celu, ATEN.selu, ATEN.glu, ATEN.glu_backward, ATEN.square,
    ATEN.logsumexp, ATEN._softmax_backward_data, ATEN._log_softmax_backward_data, ATEN._safe_softmax,
    # losses and norms
    ATEN.mse_loss, ATEN.smooth_l1_loss, ATEN.huber_loss, ATEN.soft_margin_loss, ATEN.binary_cross_entropy,
    ATEN.nll_loss_forward, ATEN.nll_loss_backward,
    ATEN.native_layer_norm_backward, ATEN.native_group_norm_backward, ATEN._fused_rms_norm,
    ATEN.rms_norm, ATEN._weight_norm_interface, ATEN.norm,
    # moves
    ATEN.pixel_shuffle, ATEN.pixel_unshuffle, ATEN.channel_shuffle,
    # padding
    ATEN.reflection_pad1d, ATEN.reflection_pad2d, ATEN.replication_pad1d, ATEN.replication_pad2d,
)  # fmt: skip


WITH_KERNELS = frozenset({
    ATEN._softmax_backward_data.default, ATEN.native_layer_norm_backward.default, ATEN.hardswish_backward.default,
    ATEN.hardsigmoid_backward.default, ATEN.hardtanh.default, ATEN.leaky_relu.default, ATEN.leaky_relu_backward.default,
    ATEN.elu.default, ATEN.celu.default, ATEN.elu_backward.default, ATEN.silu_backward.default,
    ATEN.sigmoid_backward.default, ATEN.tanh_backward.default, ATEN.mish.default, ATEN.mish_backward.default,
    ATEN.native_group_norm_backward.default, ATEN._prelu_kernel.default, ATEN._prelu_kernel_backward.default,
})  # fmt: skip
"""Operators that a format may ask for as they are, because it has kernels for them."""


def written_out(overload: Any) -> Callable[..., Any]:
    """The function that writes ``overload`` out."""
    return get_decompositions([overload])[overload]


@cache
def decomposition_table(whole: frozenset[Any] = frozenset()) -> dict[Any, Callable[..., Any]]:
    """Operator -> function that writes it out; none for those that are ``whole``."""
    return {operator: function for operator, function in _table().items() if operator not in whole}


@cache
def _table() -> dict[Any, Callable[..., Any]]:
    return {
        **get_decompositions(_SPELLED_OUT),
        ATEN._weight_norm_interface_backward.default: _weight_norm_backward,
        ATEN.cosh.default: lambda x: (torch.exp(x) + torch.exp(-x)) / 2,
        ATEN.sinh.default: lambda x: (torch.exp(x) - torch.exp(-x)) / 2,
        **{overload: _mean_by_count(overload, place) for overload, place in _LOSS_BACKWARD.items()},
    }


_LOSS_BACKWARD = {
    ATEN.mse_loss_backward.default: 3,
    ATEN.smooth_l1_loss_backward.default: 3,
    ATEN.huber_loss_backward.default: 3,
    ATEN.soft_margin_loss_backward.default: 3,
    ATEN.binary_cross_entropy_backward.default: 4,
}
"""Backward pass of a loss -> place of its ``reduction`` among the arguments."""
_MEAN, _SUM = 1, 2


def _mean_by_count(overload: Any, place: int) -> Callable[..., Any]:
    """The decomposition of ``overload`` whose mean divides by a counted number: the size of a batch that is not known
    is a number that no graph has."""
    known = get_decompositions([overload])[overload]

    def backward(gradient: Tensor, x: Tensor, *rest: Any) -> Any:
        arguments = [gradient, x, *rest]
        if len(arguments) <= place:
            arguments += [None] * (place - len(arguments)) + [_MEAN]
        if arguments[place] == _MEAN:
            arguments[0], arguments[place] = gradient / torch.ones_like(x).sum(), _SUM
        return known(*arguments)

    return backward


def _weight_norm_backward(dw: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Gradients of direction and length of w = g v / |v|, which torch has as a kernel alone.

    Args:
        dim: the one that norms are not taken over, the first or the last.
    """
    others = [d for d in range(v.dim()) if d != dim % v.dim()]
    dg = (dw * v).sum(others, keepdim=True) / norms
    return g / norms * (dw - v * (dg / norms)), dg

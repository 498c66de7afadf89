"""Recurrent layers with dropout between them, called one after the other.

What torch 2.13 traces of them has no dropout (its ``_rnn_helper`` compares the wrong way round), and cuDNN draws it
inside its kernel.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FUNCTIONS = {
    "LSTM": torch._VF.lstm, "GRU": torch._VF.gru, "RNN_TANH": torch._VF.rnn_tanh, "RNN_RELU": torch._VF.rnn_relu,
}  # fmt: skip


def layered_forward(self: nn.RNNBase, x: Tensor, state: Any = None) -> Any:
    """The forward pass of ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN``, a call for each layer."""
    if not self.dropout or self.num_layers == 1 or not isinstance(x, Tensor) or x.dim() != 3:
        return type(self).forward(self, x, state)
    steps = x.transpose(0, 1) if self.batch_first else x
    directions = 2 if self.bidirectional else 1
    has_cells = self.mode == "LSTM"
    states: list[Any] = [state] if state is None or not has_cells else list(state)
    if state is None:
        shape = (self.num_layers * directions, steps.shape[1])
        states = [steps.new_zeros(*shape, self.proj_size or self.hidden_size)]
        states += [steps.new_zeros(*shape, self.hidden_size)] * has_cells
    weights = [getattr(self, name) for name in self._flat_weights_names]
    each = len(weights) // self.num_layers
    last = []
    for layer in range(self.num_layers):
        start = [value[layer * directions : (layer + 1) * directions] for value in states]
        steps, *ends = _FUNCTIONS[self.mode](
            steps,
            start if has_cells else start[0],
            weights[layer * each : (layer + 1) * each],
            self.bias,
            1,
            0.0,
            self.training,
            self.bidirectional,
            False,
        )
        last.append(ends)
        if layer < self.num_layers - 1:
            steps = F.dropout(steps, self.dropout, self.training)
    y = steps.transpose(0, 1) if self.batch_first else steps
    ends = [torch.cat(values) for values in zip(*last, strict=True)]
    return y, tuple(ends) if has_cells else ends[0]

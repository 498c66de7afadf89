"""LSTM layers whose gate matrices are products of two thin factors; biases, and matrices not named, stay as they are.

A factor belongs to one matrix, so a cut names it by the parameter's own path, ``lstm.weight_hh_l0``: all four gates,
stacked, are decomposed together, and the device holds ``lstm.weight_hh_l0.u`` and ``.v``.
Only the factors are sent, trained and have optimizer state. An input matrix works as two products over all time steps
at once, everywhere. A hidden one works as two products per time step where an exported graph spells the loop out and
these are fewer multiplications; for the loops of other runtimes, and for torch's, it is multiplied out once per step.
Source: PriSM, section 5, its LSTM.
"""

# Dims: T time steps, B batch, I inputs, H hidden units, G = 4H gates, R rank.

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coordinator.submodels.narrowed import GATES
from coordinator.submodels.record import Factor
from edge.contracts.errors import PlanError
from export.recurrent import LSTMLoop

State = tuple[Tensor, Tensor]


class GateFactors(nn.Module):
    """One gate matrix as u [4H, R] v [R, I]; arbitrary small values until weights are loaded."""

    def __init__(self, dense: Tensor, rank: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(sum(dense.shape) + rank)
        bound = len(dense) ** -0.5
        for name, shape in (("u", (len(dense), rank)), ("v", (rank, dense.shape[1]))):
            values = (torch.rand(*shape, generator=generator) * 2 - 1) * bound**0.5
            setattr(self, name, nn.Parameter(values.to(dense)))

    def extra_repr(self) -> str:
        return f"rank={self.v.shape[0]}"


class FactorizedLSTM(nn.Module):
    """``nn.LSTM`` with some of its matrices as :class:`GateFactors`; arguments and results are its own."""

    def __init__(self, dense: nn.LSTM) -> None:
        super().__init__()
        self.hidden_size, self.num_layers, self.bias = dense.hidden_size, dense.num_layers, dense.bias
        self.batch_first, self.bidirectional = dense.batch_first, dense.bidirectional
        for name, parameter in dense.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        self.loop = LSTMLoop()

    def factorize(self, name: str, rank: int) -> None:
        """Put factors of ``rank`` in place of the matrix ``name``."""
        dense = self._parameters.pop(name)
        assert dense is not None
        setattr(self, name, GateFactors(dense.detach(), rank).train(self.training))

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Outputs [B, T, H], or [T, B, H] as the layer's ``batch_first`` says, and the last states."""
        steps = x.transpose(0, 1) if self.batch_first else x
        hidden: list[Tensor] = []
        cells: list[Tensor] = []
        for layer in range(self.num_layers):
            outputs = []
            for suffix in ("", "_reverse")[: 2 if self.bidirectional else 1]:
                start = None if state is None else (state[0][len(hidden)], state[1][len(cells)])
                given, w_ih = self._inputs(steps, f"weight_ih_l{layer}{suffix}")
                w_hh, v_hh = self._hidden(f"weight_hh_l{layer}{suffix}")
                biases = [getattr(self, f"{kind}_l{layer}{suffix}") for kind in ("bias_ih", "bias_hh")[: 2 * self.bias]]
                ordered = given.flip(0) if suffix else given
                y, last, cell = self.loop(ordered, w_ih, w_hh, *biases, v_hh=v_hh, state=start)
                outputs.append(y.flip(0) if suffix else y)
                hidden.append(last)
                cells.append(cell)
            steps = torch.cat(outputs, 2) if self.bidirectional else outputs[0]
        return steps.transpose(0, 1) if self.batch_first else steps, (torch.stack(hidden), torch.stack(cells))

    def _inputs(self, steps: Tensor, name: str) -> tuple[Tensor, Tensor]:
        """What the loop's input matrix is multiplied with, and that matrix: u, behind v."""
        weight = getattr(self, name)
        return (F.linear(steps, weight.v), weight.u) if isinstance(weight, GateFactors) else (steps, weight)

    def _hidden(self, name: str) -> tuple[Tensor, Tensor | None]:
        """The loop's hidden matrix, whole, or u and v."""
        weight = getattr(self, name)
        return (weight.u, weight.v) if isinstance(weight, GateFactors) else (weight, None)

    def extra_repr(self) -> str:
        return f"{self.hidden_size}, num_layers={self.num_layers}, batch_first={self.batch_first}"


def gate_matrices(path: str, layer: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Path and value of every matrix of a recurrent layer that has a factorized form; none for other layers.

    Left out: LSTMs with a projection or dropout between their layers, and the model itself.
    """
    if type(layer) is nn.LSTM and path and not layer.proj_size and not (layer.dropout and layer.num_layers > 1):
        for name, parameter in layer.named_parameters(recurse=False):
            if parameter.dim() == 2:
                yield f"{path}.{name}", parameter


def layer_outputs(weight: Tensor) -> int:
    """Hidden units of a gate matrix: the outputs a rank is relative to, as channels are for a convolution."""
    return len(weight) // GATES


def factorized_lstm(path: str, layer: nn.Module, name: str, factor: Factor) -> FactorizedLSTM:
    """``layer`` with the matrix ``name`` as a product; a layer that is one already is changed and given back.

    Args:
        path: of the matrix, as the cut names it.

    Raises:
        PlanError: no such matrix, or not of an LSTM.
    """
    built = FactorizedLSTM(layer).train(layer.training) if type(layer) is nn.LSTM else layer
    if not isinstance(built, FactorizedLSTM) or name not in built._parameters:
        raise PlanError(f"layer '{path}': no recurrent factorization in a {type(layer).__name__}; change the cut")
    built.factorize(name, factor.rank)
    return built

"""A module as tasks call it: with values that are given from outside, or as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

_INNER = "inner"


class ModelCall:
    """Implements :class:`export.tasks.task.Model`.

    Args:
        state: values by the names of the module's parameters and buffers, in place of its own; None: its own.
        keeps: give the same result for the same arguments, for programs in which nothing is drawn or moved.
    """

    def __init__(self, module: nn.Module, state: Mapping[str, Tensor] | None = None, *, keeps: bool = False) -> None:
        self._module, self._state = module, state
        self._kept: dict[tuple[int, ...], tuple[tuple[Any, ...], Any]] | None = {} if keeps else None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if self._kept is None or named:
            return self._called(*inputs, **named)
        key = tuple(map(id, inputs))
        if key not in self._kept:
            self._kept[key] = inputs, self._called(*inputs)
        return self._kept[key][1]

    def method(self, name: str, *inputs: Any) -> Any:
        """Method ``name`` of the module instead of its ``forward``."""
        if self._state is None:
            return getattr(self._module, name)(*inputs)
        state = {f"{_INNER}.{key}": value for key, value in self._state.items()}
        return functional_call(_Method(self._module, name), state, inputs)

    def _called(self, *inputs: Any, **named: Any) -> Any:
        if self._state is None:
            return self._module(*inputs, **named)
        return functional_call(self._module, dict(self._state), inputs, named)


class _Method(nn.Module):
    """A module whose forward is a method of another one."""

    def __init__(self, inner: nn.Module, name: str) -> None:
        super().__init__()
        self.train(inner.training)
        self.inner, self._name = inner, name

    def forward(self, *inputs: Any) -> Any:
        return getattr(self.inner, self._name)(*inputs)

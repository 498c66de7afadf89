"""Takes the place of a layer that cannot be traced, so that everything else of the module can."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_unflatten

from export.layer_inventory import BatchSize, Layer, Shape


class StandIn(nn.Module):
    """Gives tensors of the layer's shapes that depend on every number it takes; keeps its names."""

    def __init__(self, layer: Layer, replaced: nn.Module) -> None:
        super().__init__()
        self._layer = layer
        self._parameters, self._buffers, self._modules = replaced._parameters, replaced._buffers, replaced._modules

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the layer gives, in shape."""
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        batch = self._batch(given)
        numbers = [v for v in (*given, *self.parameters()) if v.is_floating_point()]
        anchor = torch.stack([value.sum() for value in numbers]).sum() if numbers else torch.zeros(())
        results = [None if v is None else _filled(anchor, v.shape, v.dtype, batch) for v in self._layer.gives]
        return None if self._layer.form is None else tree_unflatten(results, self._layer.form)

    def _batch(self, given: list[Tensor]) -> Any:
        """The batch size, from the first size among the arguments that tells it."""
        for tensor, value in zip(given, self._layer.takes, strict=False):
            for size, known in zip(tensor.shape, value.shape, strict=False):
                if isinstance(known, BatchSize):
                    return size if known == BatchSize(1, 0) else (size - known.offset) // known.slope
        return 1


def can_stand_in(layer: Layer) -> bool:
    """Whether the layer gives a tensor, or is never called."""
    return layer.form is None or any(value is not None for value in layer.gives)


def with_stand_in(module: nn.Module, layer: Layer) -> nn.Module:
    """A copy of ``module`` with a stand-in for ``layer``, which is not the module itself."""
    copied = copy.deepcopy(module)
    copied.set_submodule(layer.path, StandIn(layer, copied.get_submodule(layer.path)))
    return copied


def _filled(anchor: Tensor, shape: Shape, dtype: torch.dtype, batch: Any) -> Tensor:
    sizes = [size.slope * batch + size.offset if isinstance(size, BatchSize) else size for size in shape]
    empty = torch.zeros(sizes)
    return anchor + empty if dtype.is_floating_point else empty.to(dtype)

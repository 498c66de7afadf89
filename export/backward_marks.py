"""Which layer a backward operation belongs to: the one whose forward pass made its gradient function."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

_MARK = "backward_of"


class BackwardMarks:
    """While tracing: every operation that a layer's gradient functions run is marked with the layer's path."""

    def __init__(self) -> None:
        self._layers: dict[Any, str] = {}  # holds the gradient functions, so that each is one Python object

    @staticmethod
    def position() -> int:
        """Where autograd's count of gradient functions stands; to be asked for before a layer runs."""
        return int(torch.autograd._get_sequence_nr())

    def add(self, path: str, start: int, outputs: Any) -> None:
        """Mark the gradient functions made since ``start`` that lead to ``outputs``; inner layers come first."""
        front = [value.grad_fn for value in tree_leaves(outputs) if isinstance(value, Tensor) and value.grad_fn]
        while front:
            function = front.pop()
            if function in self._layers or not start <= function._sequence_nr() < self.position():
                continue  # an inner layer's, one from before this layer, or the end of the chain
            self._layers[function] = path
            _mark_while_running(function, path)
            front += [parent for parent, _ in function.next_functions if parent is not None]


def backward_layer(node: fx.Node) -> str | None:
    """Path of the layer whose backward pass ``node`` is part of; None for any other node."""
    path = (node.meta.get("custom") or {}).get(_MARK)
    return None if path is None else str(path)


def _mark_while_running(function: Any, path: str) -> None:
    meta = fx_traceback.current_meta
    before: list[Any] = []

    def enter(_gradients: Any) -> None:
        before.append(meta.get("custom"))
        meta["custom"] = {**(before[-1] or {}), _MARK: path}

    def leave(_inputs: Any, _outputs: Any) -> None:
        previous = before.pop()
        if previous is None:
            meta.pop("custom", None)
        else:
            meta["custom"] = previous

    function.register_prehook(enter)
    function.register_hook(leave)

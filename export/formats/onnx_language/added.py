"""The tensors of bottlenecks, prefixes and prompts in a graph: where they are read, and where their gradients go."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edge.contracts.tensors import TensorSpec
from export.formats.onnx_language.graph import StepGraph
from export.formats.onnx_language.layers import gradient_name

Gradient = Callable[[str], str]
"""Writes a gradient under the name that it is given."""


class Added:
    """The additions of a cut.

    Args:
        specs: by name.
        learn: takes (tensor, its gradient) as soon as there is one.
    """

    def __init__(
        self, graph: StepGraph, specs: Mapping[str, TensorSpec], learn: Callable[[TensorSpec, str], None]
    ) -> None:
        self._graph, self._specs, self._learn = graph, specs, learn

    def __contains__(self, path: str) -> bool:
        return any(name.startswith(f"{path}.") for name in self._specs)

    def is_trained(self, path: str) -> bool:
        """Whether a tensor of the addition at ``path`` moves."""
        return any(n.startswith(f"{path}.") and s.role == "parameter" for n, s in self._specs.items())

    def length(self, name: str) -> int:
        """Rows of tensor ``name``."""
        return int(self._specs[name].shape[0])

    def read(self, name: str) -> str:
        """Tensor ``name`` as an input of the graph."""
        return self._graph.input(self._specs[name])

    def learn(self, name: str, gradient: Gradient) -> None:
        """Tensor ``name`` learns ``gradient``, which is written only where it moves."""
        if self._specs[name].role == "parameter":
            self._learn(self._specs[name], gradient(gradient_name(name)))

"""Norms of the last dimension, forward and backward; their weights are frozen: only what they read gets a gradient."""

from __future__ import annotations

from dataclasses import dataclass

from export.formats.onnx_language.base import Base
from export.formats.onnx_language.graph import StepGraph
from export.language.architecture import Architecture


@dataclass(frozen=True)
class Normalised:
    """What a norm gives, and what its backward pass reads beside its input.

    Attributes:
        mean: of each row; empty of a root mean square.
        inverse: one over each row's deviation.
    """

    value: str
    mean: str
    inverse: str


class Norm:
    """One norm of a model, by its path."""

    def __init__(self, graph: StepGraph, base: Base, shape: Architecture, path: str, *, is_head: bool = False) -> None:
        self._graph, self._base, self._shape, self._path = graph, base, shape, path
        self._is_rms = is_head or shape.norm == "rms"

    def forward(self, x: str) -> Normalised:
        """The norm of ``x`` [..., D]."""
        graph, epsilon = self._graph, self._shape.norm_epsilon
        sizes = graph.shapes[x]
        if not self._is_rms:
            weight, bias = (self._base.vector(f"{self._path}.{part}") for part in ("weight", "bias"))
            row = (*sizes[:-1], 1)
            given = graph.node(
                "LayerNormalization", x, weight, bias, shapes=(sizes, row, row), axis=-1, epsilon=epsilon
            )
            return Normalised(*given)
        squares = graph.reduce("ReduceSumSquare", x)
        deviation = graph.map("Sqrt", graph.add(graph.mul(squares, 1.0 / sizes[-1]), epsilon))
        inverse = graph.map("Reciprocal", deviation)
        return Normalised(graph.mul(graph.mul(x, inverse), self._weight()), "", inverse)

    def backward(self, dy: str, x: str, kept: Normalised) -> str:
        """The gradient of ``x`` from that of the norm."""
        graph = self._graph
        scaled = graph.mul(dy, self._weight())
        centred = graph.sub(x, kept.mean) if kept.mean else x
        unit = graph.mul(centred, kept.inverse)
        along = graph.reduce("ReduceMean", graph.mul(scaled, unit))
        if kept.mean:
            scaled = graph.sub(scaled, graph.reduce("ReduceMean", scaled))
        return graph.mul(graph.sub(scaled, graph.mul(unit, along)), kept.inverse)

    def _weight(self) -> str:
        weight = self._base.vector(f"{self._path}.weight")
        return self._graph.add(weight, 1.0) if self._is_rms and self._shape.norm_offset else weight

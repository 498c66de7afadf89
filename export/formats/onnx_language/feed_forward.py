"""The feed-forward part of a block, gated or not, forward and backward."""

# Dims: M positions of a whole batch, D hidden, F width inside.

from __future__ import annotations

import math
from dataclasses import dataclass

from export.formats.onnx_language.graph import StepGraph
from export.formats.onnx_language.layers import Linears
from export.language.architecture import Architecture

_SLOPE = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715 * _SLOPE
"""GELU in its tanh form is u sigmoid(a u + b u^3) with these. Source: Hendrycks and Gimpel, arXiv 1606.08415."""


@dataclass(frozen=True)
class Passed:
    """What the backward pass reads: ``x`` [M, D], what the projections made of it [M, F], and v x of each layer."""

    x: str
    gate: str
    up: str
    inside: str
    gate_inner: str
    up_inner: str
    down_inner: str


class FeedForward:
    """The feed-forward part of one block."""

    def __init__(self, graph: StepGraph, linears: Linears, shape: Architecture, block: int) -> None:
        self._graph, self._linears, self._shape = graph, linears, shape
        path = f"blocks.{block}.feed_forward"
        self._gate, self._up, self._down = (f"{path}.{name}" for name in ("gate", "up", "down"))
        self._is_gated = shape.gated

    @property
    def trains_projections(self) -> bool:
        """Whether a factor of the projections in moves."""
        return any(map(self._linears.is_trained, (self._gate, self._up)))

    @property
    def trains(self) -> bool:
        """Whether any factor moves."""
        return self.trains_projections or self._linears.is_trained(self._down)

    def forward(self, x: str) -> tuple[str, Passed]:
        """[M, D] -> [M, D]."""
        graph = self._graph
        gate, gate_inner = self._linears.forward(self._gate, x) if self._is_gated else ("", "")
        up, up_inner = self._linears.forward(self._up, x)
        inside = graph.mul(self._activation(gate), up) if self._is_gated else self._activation(up)
        y, down_inner = self._linears.forward(self._down, inside)
        return y, Passed(x, gate, up, inside, gate_inner, up_inner, down_inner)

    def backward(self, dy: str, kept: Passed, *, goes_on: bool) -> str:
        """The gradient of ``x``; empty where nothing below is trained."""
        graph = self._graph
        deeper = goes_on or self.trains_projections
        d_inside = self._linears.backward(self._down, dy, kept.inside, kept.down_inner, goes_on=deeper)
        if not deeper:
            return ""
        if not self._is_gated:
            d_up = graph.mul(d_inside, self._slope(kept.up))
            return self._linears.backward(self._up, d_up, kept.x, kept.up_inner, goes_on=goes_on)
        d_up = graph.mul(d_inside, self._activation(kept.gate))
        d_gate = graph.mul(graph.mul(d_inside, kept.up), self._slope(kept.gate))
        dx = self._linears.backward(self._up, d_up, kept.x, kept.up_inner, goes_on=goes_on)
        return self._linears.backward(self._gate, d_gate, kept.x, kept.gate_inner, onto=dx, goes_on=goes_on)

    def _activation(self, u: str) -> str:
        graph = self._graph
        if self._shape.activation == "silu":
            return graph.mul(u, graph.map("Sigmoid", u))
        return graph.map("Gelu", u, approximate="tanh")

    def _slope(self, u: str) -> str:
        """The derivative of the activation: s (1 + (1 - s) u q'(u)), where it is u s = u sigmoid(q(u))."""
        graph = self._graph
        if self._shape.activation == "silu":
            share, growth = graph.map("Sigmoid", u), u
        else:
            squared = graph.mul(u, u)
            share = graph.map("Sigmoid", graph.mul(graph.add(graph.mul(squared, _CUBIC), _SLOPE), u))
            growth = graph.mul(graph.add(graph.mul(squared, 3 * _CUBIC), _SLOPE), u)
        rest = graph.sub(1.0, share)
        return graph.mul(graph.add(graph.mul(rest, growth), 1.0), share)

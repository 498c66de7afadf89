"""The feed-forward part of a block, gated or not, forward and backward."""

# Dims: M positions of a whole batch, D hidden, F width inside.

from __future__ import annotations

from dataclasses import dataclass

from export.formats.onnx_language.activation import Activation, activated, slope
from export.formats.onnx_language.added import Added
from export.formats.onnx_language.bottleneck import Bottleneck, Narrowed
from export.formats.onnx_language.graph import StepGraph
from export.formats.onnx_language.layers import Linears
from export.language.architecture import Architecture


@dataclass(frozen=True)
class Passed:
    """What the backward pass reads: ``x`` [M, D], what the projections made of it [M, F], and v x of each layer.

    Attributes:
        narrowed: of the bottleneck behind the part, where there is one.
    """

    x: str
    gate: str
    up: str
    inside: str
    gate_inner: str
    up_inner: str
    down_inner: str
    narrowed: Narrowed | None = None


class FeedForward:
    """The feed-forward part of one block."""

    def __init__(self, graph: StepGraph, linears: Linears, added: Added, shape: Architecture, block: int) -> None:
        self._graph, self._linears = graph, linears
        self._kind: Activation = shape.activation
        path = f"blocks.{block}.feed_forward"
        self._gate, self._up, self._down = (f"{path}.{name}" for name in ("gate", "up", "down"))
        self._is_gated = shape.gated
        adapter = f"{path}.adapter"
        self._bottleneck = Bottleneck(graph, added, adapter) if adapter in added else None

    @property
    def trains_projections(self) -> bool:
        """Whether a factor of the projections in moves."""
        return any(map(self._linears.is_trained, (self._gate, self._up)))

    @property
    def trains_layers(self) -> bool:
        """Whether any factor moves."""
        return self.trains_projections or self._linears.is_trained(self._down)

    @property
    def trains(self) -> bool:
        """Whether a factor or the bottleneck moves."""
        return self.trains_layers or (self._bottleneck is not None and self._bottleneck.trains)

    def forward(self, x: str) -> tuple[str, Passed]:
        """[M, D] -> [M, D]."""
        graph = self._graph
        gate, gate_inner = self._linears.forward(self._gate, x) if self._is_gated else ("", "")
        up, up_inner = self._linears.forward(self._up, x)
        inside = (
            graph.mul(activated(graph, self._kind, gate), up) if self._is_gated else activated(graph, self._kind, up)
        )
        y, down_inner = self._linears.forward(self._down, inside)
        narrowed = None
        if self._bottleneck:
            y, narrowed = self._bottleneck.forward(y)
        return y, Passed(x, gate, up, inside, gate_inner, up_inner, down_inner, narrowed)

    def backward(self, dy: str, kept: Passed, *, goes_on: bool) -> str:
        """The gradient of ``x``; empty where nothing below is trained."""
        graph = self._graph
        if self._bottleneck and kept.narrowed:
            dy = self._bottleneck.backward(dy, kept.narrowed, goes_on=goes_on or self.trains_layers)
            if not dy:
                return ""
        deeper = goes_on or self.trains_projections
        d_inside = self._linears.backward(self._down, dy, kept.inside, kept.down_inner, goes_on=deeper)
        if not deeper:
            return ""
        if not self._is_gated:
            d_up = graph.mul(d_inside, slope(graph, self._kind, kept.up))
            return self._linears.backward(self._up, d_up, kept.x, kept.up_inner, goes_on=goes_on)
        d_up = graph.mul(d_inside, activated(graph, self._kind, kept.gate))
        d_gate = graph.mul(graph.mul(d_inside, kept.up), slope(graph, self._kind, kept.gate))
        dx = self._linears.backward(self._up, d_up, kept.x, kept.up_inner, goes_on=goes_on)
        return self._linears.backward(self._gate, d_gate, kept.x, kept.gate_inner, onto=dx, goes_on=goes_on)

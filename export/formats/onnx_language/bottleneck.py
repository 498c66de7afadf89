"""A bottleneck behind the feed-forward part of a block, forward and backward: y = h + up gelu(down h + a) + b."""

# Dims: M positions of a whole batch, D hidden, U units.

from __future__ import annotations

from dataclasses import dataclass

from export.formats.onnx_language.activation import activated, slope
from export.formats.onnx_language.added import Added, Gradient
from export.formats.onnx_language.graph import StepGraph


@dataclass(frozen=True)
class Narrowed:
    """What the backward pass reads: ``h`` [M, D], before the activation and behind it [M, U]."""

    h: str
    inner: str
    active: str


class Bottleneck:
    """The bottleneck of one block.

    Args:
        path: of its four tensors.
    """

    def __init__(self, graph: StepGraph, added: Added, path: str) -> None:
        self._graph, self._added, self._path = graph, added, path

    @property
    def trains(self) -> bool:
        """Whether it moves."""
        return self._added.is_trained(self._path)

    def forward(self, h: str) -> tuple[str, Narrowed]:
        """[M, D] -> [M, D]."""
        graph, read = self._graph, self._read
        inner = graph.gemm(h, read("down"), read("down_bias"), flip_b=True)
        active = activated(graph, "gelu_tanh", inner)
        made = graph.gemm(active, read("up"), read("up_bias"), flip_b=True)
        return graph.add(h, made), Narrowed(h, inner, active)

    def backward(self, dy: str, kept: Narrowed, *, goes_on: bool) -> str:
        """The gradient of ``h``; empty where nothing below is trained."""
        graph, learn = self._graph, self._learn
        d_inner = graph.mul(graph.gemm(dy, self._read("up")), slope(graph, "gelu_tanh", kept.inner))
        learn("up", lambda name: graph.gemm(dy, kept.active, flip_a=True, name=name))
        learn("up_bias", lambda name: self._summed(dy, name))
        learn("down", lambda name: graph.gemm(d_inner, kept.h, flip_a=True, name=name))
        learn("down_bias", lambda name: self._summed(d_inner, name))
        return graph.gemm(d_inner, self._read("down"), dy) if goes_on else ""

    def _read(self, part: str) -> str:
        return self._added.read(f"{self._path}.{part}")

    def _learn(self, part: str, gradient: Gradient) -> None:
        self._added.learn(f"{self._path}.{part}", gradient)

    def _summed(self, rows: str, name: str) -> str:
        """The sum of ``rows`` [M, ...] over M."""
        graph = self._graph
        return graph.reshape(graph.reduce("ReduceSum", rows, 0), graph.shapes[rows][1:], name=name)

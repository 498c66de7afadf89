"""Linear layers over the base, with factors beside them where a cut has any: y = W x + b + u (v x).

Source: FedLoRA (FedHM, journal version), which scales by no alpha / r.
"""

# Dims: M positions of a whole batch, O outputs, I inputs, R rank.

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edge.contracts.tensors import TensorSpec
from export.formats.onnx_language.base import Base
from export.formats.onnx_language.graph import StepGraph


@dataclass(frozen=True)
class Factors:
    """The two factors beside one layer: their specs, and whether each is trained."""

    u: TensorSpec
    v: TensorSpec

    @property
    def trained(self) -> tuple[TensorSpec, ...]:
        """Those that move."""
        return tuple(spec for spec in (self.u, self.v) if spec.role == "parameter")


class Linears:
    """The linear layers of a graph.

    Args:
        factors: of the layers that have any, by path.
        learn: takes (factor, its gradient) as soon as there is one.
    """

    def __init__(
        self,
        graph: StepGraph,
        base: Base,
        factors: Mapping[str, Factors],
        learn: Callable[[TensorSpec, str], None],
    ) -> None:
        self._graph, self._base, self._factors, self._learn = graph, base, factors, learn

    def is_trained(self, path: str) -> bool:
        """Whether a factor of the layer moves."""
        return path in self._factors and bool(self._factors[path].trained)

    def forward(self, path: str, x: str) -> tuple[str, str]:
        """y [M, O] of ``x`` [M, I], and v x [M, R], which the gradient of u reads; empty without factors."""
        graph = self._graph
        bias = self._base.vector(f"{path}.bias") if f"{path}.bias" in self._base else ""
        y = graph.gemm(x, self._base.dense(f"{path}.weight"), bias, flip_b=True)
        if path not in self._factors:
            return y, ""
        factors = self._factors[path]
        inner = graph.gemm(x, graph.input(factors.v), flip_b=True)
        return graph.gemm(inner, graph.input(factors.u), y, flip_b=True), inner

    def backward(self, path: str, dy: str, x: str, inner: str, *, onto: str = "", goes_on: bool = True) -> str:
        """The gradient of ``x``, added to ``onto``; the factors learn theirs. Empty where nothing below is trained."""
        graph, factors = self._graph, self._factors.get(path)
        d_inner = ""
        if factors:
            if factors.v.role == "parameter" or goes_on:
                d_inner = graph.gemm(dy, graph.input(factors.u))
            if factors.u.role == "parameter":
                self._learn(factors.u, graph.gemm(dy, inner, flip_a=True, name=gradient_name(factors.u.name)))
            if factors.v.role == "parameter":
                self._learn(factors.v, graph.gemm(d_inner, x, flip_a=True, name=gradient_name(factors.v.name)))
        if not goes_on:
            return ""
        dx = graph.gemm(dy, self._base.dense(f"{path}.weight"), onto)
        return graph.gemm(d_inner, graph.input(factors.v), dx) if factors else dx


def gradient_name(parameter: str) -> str:
    """The value of a graph that is the gradient of ``parameter``."""
    return f"grad:{parameter}"

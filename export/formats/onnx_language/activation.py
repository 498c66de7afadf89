"""The activations of language models and their derivatives, each in one formula.

Both are u s = u sigmoid(q(u)): of SiLU q(u) = u, of GELU in its tanh form q(u) = a u + b u^3. The derivative is
s (1 + (1 - s) u q'(u)). Source: Hendrycks and Gimpel, arXiv 1606.08415.
"""

from __future__ import annotations

import math
from typing import Literal

from export.formats.onnx_language.graph import StepGraph

Activation = Literal["gelu_tanh", "silu"]
_SLOPE = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715 * _SLOPE


def activated(graph: StepGraph, kind: Activation, u: str) -> str:
    """The activation of every entry of ``u``."""
    if kind == "silu":
        return graph.mul(u, graph.map("Sigmoid", u))
    return graph.map("Gelu", u, approximate="tanh")


def slope(graph: StepGraph, kind: Activation, u: str) -> str:
    """Its derivative at every entry of ``u``."""
    if kind == "silu":
        share, growth = graph.map("Sigmoid", u), u
    else:
        squared = graph.mul(u, u)
        share = graph.map("Sigmoid", graph.mul(graph.add(graph.mul(squared, _CUBIC), _SLOPE), u))
        growth = graph.mul(graph.add(graph.mul(squared, 3 * _CUBIC), _SLOPE), u)
    rest = graph.sub(1.0, share)
    return graph.mul(graph.add(graph.mul(rest, growth), 1.0), share)

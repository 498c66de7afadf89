"""Keys and values before those of an attention, forward and backward; no copy of them for each example exists."""

# Dims: T positions of one example, P of the prefix, K key heads, G query heads that share one, H head size.

from __future__ import annotations

from export.formats.onnx_language.added import Added
from export.formats.onnx_language.graph import StepGraph
from export.language.architecture import Architecture

_APART = [0, 2, 3, 1, 4]
_TOGETHER = [0, 3, 1, 2, 4]


class Prefix:
    """The prefix of one block.

    Args:
        path: of its ``keys`` and ``values`` [P, K H].

    Attributes:
        length: P.
    """

    def __init__(self, graph: StepGraph, added: Added, shape: Architecture, path: str) -> None:
        self._graph, self._added, self._shape, self._path = graph, added, shape, path
        self.length = added.length(f"{path}.keys")

    @property
    def trains(self) -> bool:
        """Whether it moves."""
        return self._added.is_trained(self._path)

    def keys(self) -> str:
        """[1, K, 1, P, H]."""
        return self._heads("keys")

    def values(self) -> str:
        """[1, K, 1, P, H]."""
        return self._heads("values")

    def scores(self, own: str, queries: str) -> str:
        """Scores [..., T, P + T] of ``queries``, those of the prefix before ``own`` [..., T, T]."""
        graph = self._graph
        return graph.concat([graph.product(queries, self.keys(), flip_b=True, alpha=self._shape.scale), own])

    def apart(self, whole: str) -> tuple[str, str]:
        """What is of the prefix [..., P] and of the positions [..., T] in ``whole``."""
        size = self._graph.shapes[whole][-1]
        first, second = self._graph.split(whole, [self.length, size - self.length])
        return first, second

    def learn(self, shares: str, d_out: str, d_scores: str, queries: str) -> None:
        """The gradients of the prefix.

        Args:
            shares, d_scores: attention weights and the gradient of scores, of the prefix alone [..., T, P].
            d_out: of what attention gives, [..., T, H].
        """
        graph, scale = self._graph, self._shape.scale
        d_values = graph.product(shares, d_out, flip_a=True)
        self._added.learn(f"{self._path}.values", lambda name: self._together(d_values, name))
        d_keys = graph.product(d_scores, queries, flip_a=True, alpha=scale)
        self._added.learn(f"{self._path}.keys", lambda name: self._together(d_keys, name))

    def _heads(self, part: str) -> str:
        sizes = [1, self.length, self._shape.kv_heads, 1, self._shape.head_size]
        return self._graph.transpose(self._graph.reshape(self._added.read(f"{self._path}.{part}"), sizes), _APART)

    def _together(self, gradients: str, name: str) -> str:
        """[B, K, G, P, H] summed over examples and the heads that share a key -> [P, K H]."""
        graph = self._graph
        summed = graph.reduce("ReduceSum", graph.reduce("ReduceSum", gradients, 0), 2)
        rows = [self.length, self._shape.kv_heads * self._shape.head_size]
        return graph.reshape(graph.transpose(summed, _TOGETHER), rows, name=name)

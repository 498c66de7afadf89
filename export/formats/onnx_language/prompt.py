"""Virtual embeddings before those of the symbols: put there, taken away behind the last block, and their gradient."""

# Dims: B batch, T positions of one example, P of the prompt, D hidden.

from __future__ import annotations

from export.formats.onnx_language.added import Added
from export.formats.onnx_language.graph import StepGraph

TOKENS = "embedding.prompt.tokens"


class Prompt:
    """The prompt of a model.

    Args:
        length: T.

    Attributes:
        size: P.
    """

    def __init__(self, graph: StepGraph, added: Added, length: int, hidden: int) -> None:
        self._graph, self._added, self._hidden = graph, added, hidden
        self.size = added.length(TOKENS)
        self._whole = self.size + length

    def before(self, x: str, symbols: str) -> str:
        """``x`` [B T, D] with the prompt before every example, [B (P + T), D]."""
        graph = self._graph
        batch = graph.one("Shape", symbols, shape=(1,), dtype="int64", start=0, end=1)
        rest = graph.constant([self.size, self._hidden])
        sizes = graph.one("Concat", batch, rest, shape=(3,), dtype="int64", axis=0)
        tokens = graph.one("Expand", self._added.read(TOKENS), sizes, shape=(graph.batch, self.size, self._hidden))
        own = graph.reshape(x, [-1, self._whole - self.size, self._hidden])
        return graph.reshape(graph.concat([tokens, own], axis=1), [-1, self._hidden])

    def behind(self, x: str) -> str:
        """The positions of symbols [B T, D] of the stream [B (P + T), D]."""
        return self._graph.reshape(self._apart(x)[1], [-1, self._hidden])

    def behind_backward(self, dy: str) -> str:
        """The gradient of the stream, nothing of which is the prompt's own."""
        graph = self._graph
        own = graph.reshape(dy, [-1, self._whole - self.size, self._hidden])
        batch, _, width = graph.shapes[own]
        pads = graph.constant([0, self.size, 0, 0, 0, 0])
        padded = graph.one("Pad", own, pads, shape=(batch, self._whole, width))
        return graph.reshape(padded, [-1, self._hidden])

    def learn(self, dx: str) -> None:
        """The gradient of the prompt, from that of the first block's input [B (P + T), D]."""
        graph = self._graph
        tokens = graph.reduce("ReduceSum", self._apart(dx)[0], 0)
        self._added.learn(TOKENS, lambda name: graph.reshape(tokens, [self.size, self._hidden], name=name))

    def _apart(self, x: str) -> tuple[str, str]:
        graph = self._graph
        whole = graph.reshape(x, [-1, self._whole, self._hidden])
        first, second = graph.split(whole, [self.size, self._whole - self.size], axis=1)
        return first, second

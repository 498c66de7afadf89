"""One decoder block: forward, and backward from its input, which is all that is kept of it in between."""

from __future__ import annotations

from export.formats.onnx_language.added import Added
from export.formats.onnx_language.attention import Attention
from export.formats.onnx_language.base import Base
from export.formats.onnx_language.feed_forward import FeedForward
from export.formats.onnx_language.graph import StepGraph
from export.formats.onnx_language.layers import Linears
from export.formats.onnx_language.norms import Norm
from export.language.architecture import Architecture


class Block:
    """Block ``number`` of a model; the stream is [M, D], positions of a whole batch one after the other."""

    def __init__(
        self,
        graph: StepGraph,
        base: Base,
        linears: Linears,
        added: Added,
        shape: Architecture,
        number: int,
        length: int,
    ) -> None:
        path = f"blocks.{number}"
        self._graph, self._path = graph, path
        self._attention = Attention(graph, base, linears, added, shape, number, length)
        self._feed_forward = FeedForward(graph, linears, added, shape, number)
        self._norms = [Norm(graph, base, shape, f"{path}.{n}_norm") for n in ("attention", "feed_forward")]
        self._post = [
            Norm(graph, base, shape, f"{path}.{n}_post_norm") for n in ("attention", "feed_forward") if shape.post_norms
        ]

    @property
    def trains(self) -> bool:
        """Whether a factor or an addition of the block moves."""
        return self._attention.trains or self._feed_forward.trains

    def forward(self, x: str) -> str:
        """What the next block reads."""
        graph, graph.scope = self._graph, f"{self._path}/forward"
        added, _ = self._attention.forward(self._norms[0].forward(x).value)
        middle = graph.add(x, self._post[0].forward(added).value if self._post else added)
        added, _ = self._feed_forward.forward(self._norms[1].forward(middle).value)
        return graph.add(middle, self._post[1].forward(added).value if self._post else added)

    def backward(self, dy: str, x: str, *, goes_on: bool) -> str:
        """The gradient of ``x`` from that of the block's output; empty where no block below is trained.

        What it reads of the forward pass is computed once more from ``x``.
        """
        graph, graph.scope = self._graph, f"{self._path}/again"
        first = self._norms[0].forward(x)
        attended_y, attended = self._attention.forward(first.value)
        attended_post = self._post[0].forward(attended_y) if self._post else None
        middle = graph.add(x, attended_post.value if attended_post else attended_y)
        second = self._norms[1].forward(middle)
        passed_y, passed = self._feed_forward.forward(second.value)
        passed_post = self._post[1].forward(passed_y) if self._post else None

        graph.scope = f"{self._path}/backward"
        attention_too = goes_on or self._attention.trains
        d_middle = dy
        if attention_too or self._feed_forward.trains:
            d_added = self._post[1].backward(dy, passed_y, passed_post) if passed_post else dy
            d_norm = self._feed_forward.backward(d_added, passed, goes_on=attention_too)
            if d_norm:
                d_middle = graph.add(dy, self._norms[1].backward(d_norm, middle, second))
        if not attention_too:
            return ""
        d_added = self._post[0].backward(d_middle, attended_y, attended_post) if attended_post else d_middle
        d_norm = self._attention.backward(d_added, attended, goes_on=goes_on)
        return graph.add(d_middle, self._norms[0].backward(d_norm, x, first)) if d_norm else ""

"""One decoder block: forward, and backward from its input, or from all that was computed of it."""

from __future__ import annotations

from dataclasses import dataclass

from export.formats.onnx_language.added import Added
from export.formats.onnx_language.attention import Attended, Attention
from export.formats.onnx_language.base import Base
from export.formats.onnx_language.feed_forward import FeedForward, Passed
from export.formats.onnx_language.graph import StepGraph
from export.formats.onnx_language.layers import Linears
from export.formats.onnx_language.norms import Norm, Normalised
from export.language.architecture import Architecture


@dataclass(frozen=True)
class Computed:
    """What the backward pass of a block reads of its forward pass; the stream ``x``, ``middle`` is [M, D]."""

    x: str
    first: Normalised
    attended_y: str
    attended: Attended
    attended_post: Normalised | None
    middle: str
    second: Normalised
    passed_y: str
    passed: Passed
    passed_post: Normalised | None


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
        return self.output(self.computed(x))

    def computed(self, x: str, part: str = "forward") -> Computed:
        """All of the block but its last sum.

        Args:
            part: of the step, for the names of nodes.
        """
        graph, graph.scope = self._graph, f"{self._path}/{part}"
        first = self._norms[0].forward(x)
        attended_y, attended = self._attention.forward(first.value)
        attended_post = self._post[0].forward(attended_y) if self._post else None
        middle = graph.add(x, attended_post.value if attended_post else attended_y)
        second = self._norms[1].forward(middle)
        passed_y, passed = self._feed_forward.forward(second.value)
        passed_post = self._post[1].forward(passed_y) if self._post else None
        return Computed(x, first, attended_y, attended, attended_post, middle, second, passed_y, passed, passed_post)

    def output(self, kept: Computed) -> str:
        """What the next block reads."""
        return self._graph.add(kept.middle, kept.passed_post.value if kept.passed_post else kept.passed_y)

    def backward(self, dy: str, x: str, *, goes_on: bool, kept: Computed | None = None) -> str:
        """The gradient of ``x`` from that of the block's output; empty where no block below is trained.

        Args:
            kept: what it reads of the forward pass; None: that is computed once more from ``x``.
        """
        graph, kept = self._graph, kept or self.computed(x, "again")
        graph.scope = f"{self._path}/backward"
        attention_too = goes_on or self._attention.trains
        d_middle = dy
        if attention_too or self._feed_forward.trains:
            post = kept.passed_post
            d_added = self._post[1].backward(dy, kept.passed_y, post) if post else dy
            d_norm = self._feed_forward.backward(d_added, kept.passed, goes_on=attention_too)
            if d_norm:
                d_middle = graph.add(dy, self._norms[1].backward(d_norm, kept.middle, kept.second))
        if not attention_too:
            return ""
        post = kept.attended_post
        d_added = self._post[0].backward(d_middle, kept.attended_y, post) if post else d_middle
        d_norm = self._attention.backward(d_added, kept.attended, goes_on=goes_on)
        return graph.add(d_middle, self._norms[0].backward(d_norm, x, kept.first)) if d_norm else ""

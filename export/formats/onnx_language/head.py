"""The head over the vocabulary in chunks with a running maximum: neither logits nor a one-hot of targets ever exist.

For each chunk W_c: l = y W_c^T, m' = max(m, max l), s = s e^(m - m') + sum e^(l - m') and
a = a e^(m - m') + e^(l - m') W_c. Then the loss of a position is log s + m - y W[target], and its gradient
a / s - W[target]. Each chunk of the table is made float32 once.
Source of the running maximum: Milakov and Gimelshein, arXiv 1805.02867.
"""

# Dims: M positions of a whole batch, D hidden, V vocabulary, C symbols of a chunk.

from __future__ import annotations

from dataclasses import dataclass

from edge.contracts.tensors import TensorSpec
from export.formats.onnx_language.base import Base
from export.formats.onnx_language.graph import StepGraph
from export.tasks.class_places import IGNORED

_CHUNK_BYTES = 24 << 20
"""What a chunk may take: its part of the table, and scores, their differences and powers of M positions."""
_LEAST_CHUNK = 256


@dataclass(frozen=True)
class Scored:
    """Of a batch, before any mean is taken.

    Attributes:
        entropy: [M, 1], 0 where a position does not count.
        counted: [M, 1], 1 or 0.
        mixed: mean row of the table under the predicted distribution, [M, D]; empty where no gradient is asked for.
        wanted: the targets' rows, [M, D].
        best: the symbol of the highest score, [M, 1]; empty unless asked for.
        target: [M, 1], :data:`IGNORED` where a position does not count.
    """

    entropy: str
    counted: str
    mixed: str
    wanted: str
    best: str
    target: str


class Head:
    """The head of a model.

    Args:
        table: name of the matrix [V, D].
    """

    def __init__(self, graph: StepGraph, base: Base, table: str, vocabulary: int) -> None:
        self._graph, self._base, self._table, self._vocabulary = graph, base, table, vocabulary

    def scored(self, y: str, target: TensorSpec, *, is_trained: bool, wants_best: bool = False) -> Scored:
        """Entropy of normalised positions ``y`` [M, D] against input ``target`` [batch, T].

        Args:
            is_trained: whether the gradient will be asked for.
            wants_best: whether hits will be counted.
        """
        graph = self._graph
        graph.scope = "head"
        column = graph.reshape(graph.input(target), [-1, 1])
        ignored = graph.pair("Equal", column, graph.constant(IGNORED), dtype="bool")
        counted = graph.cast(graph.map("Not", ignored), "float32")
        wanted = self._base.rows_of(self._table, target)
        own = graph.reduce("ReduceSum", graph.mul(y, wanted))
        top = total = mixed = best = ""
        for rows in self._chunks(graph.shapes[y][0], graph.shapes[y][1]):
            part = self._base.dense(self._table, rows)
            scores = graph.gemm(y, part, flip_b=True)
            highest = graph.reduce("ReduceMax", scores)
            if wants_best:
                best = self._best(best, top, highest, scores, rows[0])
            above = graph.pair("Max", highest, top) if top else highest
            powers = graph.map("Exp", graph.sub(scores, above))
            share = graph.reduce("ReduceSum", powers)
            if top:
                kept = graph.map("Exp", graph.sub(top, above))
                total = graph.add(graph.mul(total, kept), share)
                mixed = graph.gemm(powers, part, graph.mul(mixed, kept)) if is_trained else ""
            else:
                total, mixed = share, graph.gemm(powers, part) if is_trained else ""
            top = above
        each = graph.sub(graph.add(graph.map("Log", total), top), own)
        mean = graph.div(mixed, total) if is_trained else ""
        return Scored(graph.mul(each, counted), counted, mean, wanted, best, column)

    def loss(self, scored: Scored, *, share: float = 1.0, name: str = "") -> tuple[str, str]:
        """The mean over counted positions times ``share``, and what each of them weighs in it [M, 1]."""
        graph = self._graph
        count = graph.pair("Max", graph.total("ReduceSum", scored.counted), 1.0)
        weight = graph.div(graph.mul(scored.counted, share) if share != 1.0 else scored.counted, count)
        mean = graph.div(graph.total("ReduceSum", scored.entropy), count)
        return graph.mul(mean, share, name=name), weight

    def gradient(self, scored: Scored, weight: str) -> str:
        """Of the loss, for what the head read [M, D]."""
        return self._graph.mul(self._graph.sub(scored.mixed, scored.wanted), weight)

    def sums(self, scored: Scored) -> dict[str, str]:
        """What an evaluation adds up, by the names of the task's sums."""
        graph = self._graph
        hit = graph.cast(graph.pair("Equal", scored.best, scored.target, dtype="bool"), "float32")
        return {
            "entropy": graph.total("ReduceSum", scored.entropy),
            "hits": graph.total("ReduceSum", graph.mul(hit, scored.counted)),
            "positions": graph.total("ReduceSum", scored.counted),
        }

    def _best(self, best: str, top: str, highest: str, scores: str, first: int) -> str:
        """The symbol so far: of equal scores the first one."""
        graph = self._graph
        shape = (*graph.shapes[scores][:-1], 1)
        here = graph.one("ArgMax", scores, shape=shape, dtype="int64", axis=-1, keepdims=1)
        if not best:
            return here
        here = graph.pair("Add", here, graph.constant(first), dtype="int64")
        is_higher = graph.pair("Greater", highest, top, dtype="bool")
        return graph.one("Where", is_higher, here, best, shape=shape, dtype="int64")

    def _chunks(self, positions: int, width: int) -> list[tuple[int, int]]:
        size = max(_LEAST_CHUNK, _CHUNK_BYTES // (4 * (width + 3 * positions)))
        parts = -(-self._vocabulary // size)
        size = -(-self._vocabulary // parts)
        return [(start, min(start + size, self._vocabulary)) for start in range(0, self._vocabulary, size)]

"""Causal attention of grouped heads, forward and backward, on stacks [batch, key heads, sharing heads, T, H]."""

# Dims: M positions of a whole batch, T positions of one example, N query heads, K key heads, G query heads that share
# a key head, H head size, D hidden, P virtual positions of a prefix.

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from export.formats.onnx_language.added import Added
from export.formats.onnx_language.base import Base
from export.formats.onnx_language.graph import StepGraph
from export.formats.onnx_language.layers import Linears
from export.formats.onnx_language.norms import Norm, Normalised
from export.formats.onnx_language.prefix import Prefix
from export.language.architecture import Architecture
from export.language.causal_model import rotations

_UNSEEN = -1e30
"""Added to scores of positions that are not seen: their share is exactly 0."""
_APART = [0, 2, 3, 1, 4]
_TOGETHER = [0, 3, 1, 2, 4]


@dataclass(frozen=True)
class Turned:
    """Queries or keys: before their norm, the norm, and as scores read them."""

    plain: str
    normalised: Normalised | None
    value: str


@dataclass(frozen=True)
class Attended:
    """What the backward pass reads.

    Attributes:
        x: [M, D], of the projections.
        inner: v x of each projection with factors.
        shares: attention weights [B, K, G, T, T], or [B, K, G, T, P + T] with a prefix.
        out, out_inner: what the output projection read, [M, N H], and its v x.
    """

    x: str
    inner: tuple[str, ...]
    queries: Turned
    keys: Turned
    values: str
    shares: str
    out: str
    out_inner: str


class Attention:
    """The attention of one block.

    Args:
        length: positions of an example.
    """

    def __init__(
        self,
        graph: StepGraph,
        base: Base,
        linears: Linears,
        added: Added,
        shape: Architecture,
        block: int,
        length: int,
    ) -> None:
        self._graph, self._linears, self._shape = graph, linears, shape
        self._length, self._window, self._theta = length, shape.window(block), shape.theta(block)
        self._path = f"blocks.{block}.attention"
        prefix = f"{self._path}.prefix"
        self._prefix = Prefix(graph, added, shape, prefix) if prefix in added else None
        self._before = self._prefix.length if self._prefix else 0
        self._shared = shape.heads // shape.kv_heads
        names = ("qkv",) if shape.fused_attention else ("query", "key", "value")
        self._projections = tuple(f"{self._path}.{name}" for name in names)
        self._output = f"{self._path}.output"
        self._norms = {
            name: Norm(graph, base, shape, f"{self._path}.{name}", is_head=True)
            for name in ("query_norm", "key_norm")
            if shape.query_norm
        }

    @property
    def trains_projections(self) -> bool:
        """Whether a factor of the projections into attention moves."""
        return any(map(self._linears.is_trained, self._projections))

    @property
    def trains(self) -> bool:
        """Whether any factor or the prefix moves."""
        return self.trains_projections or self._linears.is_trained(self._output) or self._trains_prefix

    @property
    def _trains_prefix(self) -> bool:
        return self._prefix is not None and self._prefix.trains

    def forward(self, x: str) -> tuple[str, Attended]:
        """[M, D] -> [M, D]."""
        graph, shape = self._graph, self._shape
        inside = shape.heads * shape.head_size
        made = [self._linears.forward(path, x) for path in self._projections]
        parts = graph.split(made[0][0], [inside] * 3) if shape.fused_attention else tuple(y for y, _ in made)
        queries = self._turned("query_norm", self._heads(parts[0], self._shared))
        keys = self._turned("key_norm", self._heads(parts[1], 1))
        values = self._heads(parts[2], 1)
        scores = graph.product(queries.value, keys.value, flip_b=True, alpha=shape.scale)
        if self._prefix:
            scores = self._prefix.scores(scores, queries.value)
        shares = graph.map("Softmax", graph.add(scores, graph.constant(self._mask())), axis=-1)
        out = self._flat(self._mixed(shares, values))
        y, out_inner = self._linears.forward(self._output, out)
        inner = tuple(inner for _, inner in made)
        return y, Attended(x, inner, queries, keys, values, shares, out, out_inner)

    def backward(self, dy: str, kept: Attended, *, goes_on: bool) -> str:
        """The gradient of ``x``; empty where nothing below is trained."""
        graph, shape = self._graph, self._shape
        deeper = goes_on or self.trains_projections or self._trains_prefix
        d_out = self._linears.backward(self._output, dy, kept.out, kept.out_inner, goes_on=deeper)
        if not deeper:
            return ""
        d_out = self._heads(d_out, self._shared)
        prefix, shares, shares_before = self._prefix, kept.shares, ""
        d_shares = graph.product(d_out, kept.values, flip_b=True)
        if prefix:
            shares_before, shares = prefix.apart(kept.shares)
            d_shares = graph.concat([graph.product(d_out, prefix.values(), flip_b=True), d_shares])
        d_values = self._over_shared(graph.product(shares, d_out, flip_a=True))
        along = graph.reduce("ReduceSum", graph.mul(d_shares, kept.shares))
        d_scores = graph.mul(graph.sub(d_shares, along), kept.shares)
        d_before = ""
        if prefix:
            d_before, d_scores = prefix.apart(d_scores)
            prefix.learn(shares_before, d_out, d_before, kept.queries.value)
        d_queries = graph.product(d_scores, kept.keys.value, alpha=shape.scale)
        if prefix:
            d_queries = graph.add(d_queries, graph.product(d_before, prefix.keys(), alpha=shape.scale))
        d_keys = self._over_shared(graph.product(d_scores, kept.queries.value, flip_a=True, alpha=shape.scale))
        parts: tuple[str, ...] = (
            self._flat(self._turned_back("query_norm", d_queries, kept.queries)),
            self._flat(self._turned_back("key_norm", d_keys, kept.keys)),
            self._flat(d_values),
        )
        if shape.fused_attention:
            parts = (graph.concat(parts),)
        dx = ""
        for path, d_part, inner in zip(self._projections, parts, kept.inner, strict=True):
            dx = self._linears.backward(path, d_part, kept.x, inner, onto=dx, goes_on=goes_on)
        return dx

    def _mixed(self, shares: str, values: str) -> str:
        """What attention gives, [B, K, G, T, H]."""
        graph = self._graph
        if not self._prefix:
            return graph.product(shares, values)
        before, own = self._prefix.apart(shares)
        return graph.add(graph.product(before, self._prefix.values()), graph.product(own, values))

    def _heads(self, x: str, shared: int) -> str:
        """[M, K G H] -> [B, K, G, T, H]."""
        sizes = [-1, self._length, self._shape.kv_heads, shared, self._shape.head_size]
        return self._graph.transpose(self._graph.reshape(x, sizes), _APART)

    def _flat(self, x: str) -> str:
        """[B, K, G, T, H] -> [M, K G H]."""
        _, groups, shared, _, size = self._graph.shapes[x]
        return self._graph.reshape(self._graph.transpose(x, _TOGETHER), [-1, groups * shared * size])

    def _over_shared(self, x: str) -> str:
        """The sum over the query heads that share a key head."""
        return self._graph.reduce("ReduceSum", x, 2) if self._shared > 1 else x

    def _turned(self, norm: str, x: str) -> Turned:
        normalised = self._norms[norm].forward(x) if norm in self._norms else None
        value = normalised.value if normalised else x
        return Turned(x, normalised, self._rotated(value, 1) if self._shape.positions == "rotary" else value)

    def _turned_back(self, norm: str, dx: str, kept: Turned) -> str:
        if self._shape.positions == "rotary":
            dx = self._rotated(dx, -1)
        return self._norms[norm].backward(dx, kept.plain, kept.normalised) if kept.normalised else dx

    def _rotated(self, x: str, direction: int) -> str:
        """Each head turned by its position's angles, or back."""
        graph, half = self._graph, self._shape.head_size // 2
        tables = rotations(self._before + self._length, 2 * half, self._theta)
        cos, sin = (t[self._before :, :half].float().numpy() for t in tables)
        cosine, sine = graph.constant(cos), graph.constant(direction * sin)
        first, second = graph.split(x, [half, half])
        low = graph.sub(graph.mul(first, cosine), graph.mul(second, sine))
        high = graph.add(graph.mul(second, cosine), graph.mul(first, sine))
        return graph.concat([low, high])

    def _mask(self) -> np.ndarray:
        """[T, P + T], of all examples and heads."""
        place = np.arange(self._before + self._length)
        behind = place[self._before :, None] - place[None, :]
        seen = (behind >= 0) & (behind < self._window) if self._window else behind >= 0
        return np.where(seen, 0.0, _UNSEEN).astype(np.float32)

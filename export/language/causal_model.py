"""The torch module of an :class:`Architecture`: what a written step is held to, and what a simulated device trains."""

# Dims: B batch, T positions, D hidden, N query heads, K key heads, H head size, V vocabulary.

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edge.contracts.errors import PlanError
from edge.contracts.manifest import InputSpec
from export.language.additions import Bottleneck, Prefix, Prompt
from export.language.architecture import Architecture, Precision

ADAPTED = ("blocks.*.attention.qkv", "blocks.*.attention.query", "blocks.*.attention.key", "blocks.*.attention.value",
           "blocks.*.attention.output")  # fmt: skip
"""Linear layers that get factors where a run names none: projections into attention and out of it."""


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon) times the weight, or times 1 + weight."""

    def __init__(self, width: int, epsilon: float, *, offset: bool) -> None:
        super().__init__()
        self.epsilon, self.offset = epsilon, offset
        self.weight = nn.Parameter(torch.zeros(width) if offset else torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)
        return scaled * (1.0 + self.weight if self.offset else self.weight)


def rotations(positions: int, size: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, H], float64; both halves of a head hold the same angles."""
    frequencies = theta ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotated(x_BNTH: Tensor, cos_TH: Tensor, sin_TH: Tensor) -> Tensor:
    """Each head turned by its position's angles."""
    first, second = x_BNTH.chunk(2, dim=-1)
    return x_BNTH * cos_TH + torch.cat([-second, first], dim=-1) * sin_TH


class Attention(nn.Module):
    """Causal attention of grouped heads, [B, T, D] -> [B, T, D]; ``prefix`` is what it sees before its positions."""

    prefix: Prefix | None

    def __init__(self, shape: Architecture, block: int) -> None:
        super().__init__()
        self.shape, self.window, self.theta = shape, shape.window(block), shape.theta(block)
        self.prefix = None
        prefix = f"blocks.{block}.attention."
        for path, (outputs, inputs) in shape.linears(block).items():
            if path.startswith(prefix):
                name = path.removeprefix(prefix)
                bias = shape.output_bias if name == "output" else shape.attention_bias
                setattr(self, name, nn.Linear(inputs, outputs, bias=bias))
        if shape.query_norm:
            self.query_norm = RMSNorm(shape.head_size, shape.norm_epsilon, offset=shape.norm_offset)
            self.key_norm = RMSNorm(shape.head_size, shape.norm_epsilon, offset=shape.norm_offset)

    def forward(self, x_BTD: Tensor) -> Tensor:
        shape = self.shape
        batch, length, _ = x_BTD.shape
        before = 0 if self.prefix is None else self.prefix.length
        if shape.fused_attention:
            parts = self.qkv(x_BTD).chunk(3, dim=-1)
        else:
            parts = (self.query(x_BTD), self.key(x_BTD), self.value(x_BTD))
        q, k, v = (part.view(batch, length, -1, shape.head_size).transpose(1, 2) for part in parts)
        if shape.query_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        if shape.positions == "rotary":
            tables = rotations(before + length, shape.head_size, self.theta)
            cos, sin = (table[before:].to(q) for table in tables)
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if self.prefix is not None:
            k, v = self.prefix.before(k, v)
        if shape.kv_heads != shape.heads:
            k, v = (part.repeat_interleave(shape.heads // shape.kv_heads, dim=1) for part in (k, v))
        mask = None
        if before or 0 < self.window < length:
            seen = torch.ones(length, before + length, dtype=torch.bool, device=q.device).tril(before)
            mask = seen.triu(before + 1 - self.window) if self.window else seen
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=shape.scale)
        return self.output(out.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """[B, T, D] -> [B, T, D], gated or not; ``adapter`` stands behind it."""

    adapter: Bottleneck | None

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.shape = shape
        self.adapter = None
        if shape.gated:
            self.gate = nn.Linear(shape.hidden, shape.feed_forward, bias=shape.feed_forward_bias)
        self.up = nn.Linear(shape.hidden, shape.feed_forward, bias=shape.feed_forward_bias)
        self.down = nn.Linear(shape.feed_forward, shape.hidden, bias=shape.feed_forward_bias)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.gate(x) if self.shape.gated else self.up(x)
        inner = F.silu(inner) if self.shape.activation == "silu" else F.gelu(inner, approximate="tanh")
        out = self.down(inner * self.up(x) if self.shape.gated else inner)
        return out if self.adapter is None else self.adapter(out)


class DecoderBlock(nn.Module):
    """Attention and feed-forward part, each added to the stream."""

    def __init__(self, shape: Architecture, block: int) -> None:
        super().__init__()
        self.attention_norm = norm_of(shape)
        self.attention = Attention(shape, block)
        self.feed_forward_norm = norm_of(shape)
        self.feed_forward = FeedForward(shape)
        if shape.post_norms:
            self.attention_post_norm = norm_of(shape)
            self.feed_forward_post_norm = norm_of(shape)
        self.has_post_norms = shape.post_norms

    def forward(self, x: Tensor) -> Tensor:
        added = self.attention(self.attention_norm(x))
        x = x + (self.attention_post_norm(added) if self.has_post_norms else added)
        added = self.feed_forward(self.feed_forward_norm(x))
        return x + (self.feed_forward_post_norm(added) if self.has_post_norms else added)


class CausalModel(nn.Module):
    """A causal language model: symbols [B, T] -> logits [B, V, T].

    Attributes:
        architecture: what it is made of.
        base_precision: how a device holds the weights that are not trained.
        adapted_layers: name patterns of the linear layers that methods add factors to.
    """

    adapted_layers = ADAPTED

    def __init__(self, architecture: Architecture, base_precision: Precision = "int8") -> None:
        super().__init__()
        self.architecture, self.base_precision = architecture, base_precision
        self.embedding = nn.Embedding(architecture.vocabulary, architecture.hidden)
        if architecture.positions == "learned":
            self.positions = nn.Embedding(architecture.context, architecture.hidden)
        self.blocks = nn.ModuleList(DecoderBlock(architecture, number) for number in range(architecture.layers))
        self.norm = norm_of(architecture)
        if not architecture.tied:
            self.head = nn.Linear(architecture.hidden, architecture.vocabulary, bias=False)

    def forward(self, symbols_BT: Tensor) -> Tensor:
        return self.logits(self.hidden(symbols_BT)).transpose(1, 2)

    @property
    def prompt(self) -> Prompt | None:
        """What the first block reads before the symbols."""
        return getattr(self.embedding, "prompt", None)

    @property
    def places_before(self) -> int:
        """Virtual positions of a prefix, which take places and are not in the stream."""
        return max((block.attention.prefix.length for block in self.blocks if block.attention.prefix), default=0)

    def check_length(self, length: int) -> None:
        """Check that virtual positions leave room for ``length`` symbols.

        Raises:
            PlanError: they do not.
        """
        virtual = self.places_before + (self.prompt.length if self.prompt else 0)
        if virtual + length > self.architecture.context:
            raise PlanError(
                f"{virtual} virtual positions and windows of {length} symbols are {virtual + length} places, the model "
                f"has {self.architecture.context}; lower $.method.levels or $.model.input"
            )

    def embedded(self, symbols_BT: Tensor) -> Tensor:
        """What the first block reads, [B, T, D]; [B, P + T, D] with a prompt.

        Raises:
            PlanError: as :meth:`check_length`.
        """
        self.check_length(symbols_BT.shape[1])
        x = self.embedding(symbols_BT) * self.architecture.embedding_scale
        if self.prompt is not None:
            x = self.prompt(x)
        if self.architecture.positions == "learned":
            first = self.places_before
            x = x + self.positions(torch.arange(first, first + x.shape[1], device=symbols_BT.device))
        return x

    def of_symbols(self, x: Tensor) -> Tensor:
        """The stream [B, P + T, D] without the prompt."""
        return x if self.prompt is None else x[:, self.prompt.length :]

    def hidden(self, symbols_BT: Tensor) -> Tensor:
        """What the head reads, [B, T, D]."""
        x = self.embedded(symbols_BT)
        for block in self.blocks:
            x = block(x)
        return self.norm(self.of_symbols(x))

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        """[B, T, D] -> [B, T, V]."""
        return F.linear(hidden_BTD, self.embedding.weight if self.architecture.tied else self.head.weight)


def norm_of(shape: Architecture) -> nn.Module:
    """A norm of the residual stream."""
    if shape.norm == "layer":
        return nn.LayerNorm(shape.hidden, eps=shape.norm_epsilon)
    return RMSNorm(shape.hidden, shape.norm_epsilon, offset=shape.norm_offset)


def meta_model(architecture: Architecture, base_precision: Precision = "int8") -> CausalModel:
    """The module without values: shapes and names alone, so that a model of any size costs no memory."""
    with torch.device("meta"):
        return CausalModel(architecture, base_precision)


def token_input(architecture: Architecture, length: int) -> InputSpec:
    """One example of ``length`` symbols.

    Raises:
        ValueError: longer than the model's context.
    """
    if not 1 <= length <= architecture.context:
        raise ValueError(f"windows of {length} symbols, the model takes 1 to {architecture.context}; choose a length")
    return InputSpec(layout="tokens", shape=(length,), dtype="int64", vocabulary=architecture.vocabulary)

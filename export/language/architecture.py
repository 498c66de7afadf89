"""What a decoder-only language model is made of, as data: enough to build its torch module and to write its step.

Four families of public models are one structure with switches: GPT-2, Llama (SmolLM), Qwen2 and Gemma 3.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Precision = Literal["float32", "float16", "int8", "int4"]
"""How the frozen base is held: ``int8`` by output channel, ``int4`` in blocks of :data:`INT4_BLOCK` inputs."""

INT4_BLOCK = 64


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """A causal language model.

    Attributes:
        family: whose files it is written in: names of tensors, layout of weights.
        vocabulary: symbols; ids are 0 to this less 1.
        hidden: width of the residual stream.
        layers: blocks.
        heads, kv_heads: query heads, and heads of keys and values; each of the latter serves ``heads / kv_heads``.
        head_size: width of one head.
        feed_forward: width inside the feed-forward part.
        context: the longest sequence.
        norm: ``layer``: mean and variance, weight and bias; ``rms``: root mean square, weight alone.
        norm_epsilon: added to the variance or to the mean square.
        norm_offset: whether a norm's weight is held less 1 (Gemma).
        activation: of the feed-forward part; ``gelu_tanh`` is the tanh form.
        gated: whether the activation of one projection multiplies another (SwiGLU, GeGLU).
        positions: ``learned``: a table that is added to the embedding; ``rotary``: queries and keys are rotated, the
            first half of a head with the second (Su et al., RoFormer, in the layout of Llama).
        rotary_theta: base of the rotations; ``local_rotary_theta``: of blocks with a window.
        windows: for each block the positions that an attention sees, itself included; 0: all before it. Empty: all
            blocks 0.
        fused_attention: whether queries, keys and values come of one projection ``qkv`` (GPT-2).
        attention_bias, output_bias, feed_forward_bias: of the projections in, out, and of the feed-forward part.
        query_norm: whether each head's query and key are normalised before their rotation (Gemma 3).
        post_norms: whether what a part adds to the stream is normalised (Gemma 3).
        embedding_scale: multiplies the embedding.
        attention_scale: multiplies the scores; 0: ``head_size ** -0.5``.
        tied: whether the head is the embedding's table.
    """

    family: Literal["gpt2", "llama", "qwen2", "gemma3"]
    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    context: int
    norm: Literal["layer", "rms"] = "rms"
    norm_epsilon: float = 1e-6
    norm_offset: bool = False
    activation: Literal["gelu_tanh", "silu"] = "silu"
    gated: bool = True
    positions: Literal["learned", "rotary"] = "rotary"
    rotary_theta: float = 10_000.0
    local_rotary_theta: float = 10_000.0
    windows: tuple[int, ...] = ()
    fused_attention: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    query_norm: bool = False
    post_norms: bool = False
    embedding_scale: float = 1.0
    attention_scale: float = 0.0
    tied: bool = True

    def __post_init__(self) -> None:
        sizes = ("vocabulary", "hidden", "layers", "heads", "kv_heads", "head_size", "feed_forward", "context")
        if wrong := [f"{name} {getattr(self, name)}" for name in sizes if getattr(self, name) < 1]:
            raise ValueError(f"language model: {', '.join(wrong)}; each is at least 1")
        if self.heads % self.kv_heads:
            raise ValueError(f"language model: {self.heads} heads cannot share {self.kv_heads} key heads evenly")
        if self.fused_attention and self.kv_heads != self.heads:
            raise ValueError(f"language model: one qkv projection has {self.heads} heads each, not {self.kv_heads}")
        if self.positions == "rotary" and self.head_size % 2:
            raise ValueError(f"language model: heads of {self.head_size} cannot be rotated; an even size is needed")
        if self.windows and len(self.windows) != self.layers:
            raise ValueError(f"language model: {len(self.windows)} windows for {self.layers} blocks; name each")

    @property
    def scale(self) -> float:
        """What scores are multiplied with."""
        return self.attention_scale or self.head_size**-0.5

    def window(self, block: int) -> int:
        """Positions that ``block`` sees; 0: all before."""
        return self.windows[block] if self.windows else 0

    def theta(self, block: int) -> float:
        """Base of the rotations in ``block``."""
        return self.local_rotary_theta if self.window(block) else self.rotary_theta

    def linears(self, block: int) -> dict[str, tuple[int, int]]:
        """(outputs, inputs) of every linear layer of ``block`` by path, in the order of the forward pass."""
        attention, feed_forward = f"blocks.{block}.attention", f"blocks.{block}.feed_forward"
        inside, shared = self.heads * self.head_size, self.kv_heads * self.head_size
        found = (
            {f"{attention}.qkv": (3 * inside, self.hidden)}
            if self.fused_attention
            else {
                f"{attention}.query": (inside, self.hidden),
                f"{attention}.key": (shared, self.hidden),
                f"{attention}.value": (shared, self.hidden),
            }
        )
        found[f"{attention}.output"] = (self.hidden, inside)
        if self.gated:
            found[f"{feed_forward}.gate"] = (self.feed_forward, self.hidden)
        found[f"{feed_forward}.up"] = (self.feed_forward, self.hidden)
        found[f"{feed_forward}.down"] = (self.hidden, self.feed_forward)
        return found


GPT2 = Architecture(
    family="gpt2",
    vocabulary=50257,
    hidden=768,
    layers=12,
    heads=12,
    kv_heads=12,
    head_size=64,
    feed_forward=3072,
    context=1024,
    norm="layer",
    norm_epsilon=1e-5,
    activation="gelu_tanh",
    gated=False,
    positions="learned",
    fused_attention=True,
    attention_bias=True,
    output_bias=True,
    feed_forward_bias=True,
)
SMOLLM_135M = Architecture(
    family="llama",
    vocabulary=49152,
    hidden=576,
    layers=30,
    heads=9,
    kv_heads=3,
    head_size=64,
    feed_forward=1536,
    context=2048,
    norm_epsilon=1e-5,
)
QWEN25_05B = Architecture(
    family="qwen2",
    vocabulary=151936,
    hidden=896,
    layers=24,
    heads=14,
    kv_heads=2,
    head_size=64,
    feed_forward=4864,
    context=32768,
    rotary_theta=1_000_000.0,
    attention_bias=True,
)
GEMMA3_270M = Architecture(
    family="gemma3",
    vocabulary=262144,
    hidden=640,
    layers=18,
    heads=4,
    kv_heads=1,
    head_size=256,
    feed_forward=2048,
    context=32768,
    norm_offset=True,
    activation="gelu_tanh",
    rotary_theta=1_000_000.0,
    windows=(512, 512, 512, 512, 512, 0) * 3,
    query_norm=True,
    post_norms=True,
    embedding_scale=640**0.5,
    attention_scale=256**-0.5,
)

PUBLIC: dict[str, Architecture] = {
    "gpt2": GPT2,
    "smollm-135m": SMOLLM_135M,
    "qwen2.5-0.5b": QWEN25_05B,
    "gemma-3-270m": GEMMA3_270M,
}
"""Shapes of public models by name, as their ``config.json`` say; the weights are their owners'."""

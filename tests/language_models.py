"""A language model small enough for every test: two blocks, sixteen wide, thirty symbols."""

from __future__ import annotations

from export.language.architecture import Architecture

TINY = Architecture(
    family="gpt2",
    vocabulary=30,
    hidden=16,
    layers=2,
    heads=2,
    kv_heads=2,
    head_size=8,
    feed_forward=32,
    context=24,
    norm="layer",
    activation="gelu_tanh",
    gated=False,
    positions="learned",
    fused_attention=True,
    attention_bias=True,
    output_bias=True,
    feed_forward_bias=True,
)
PARTS = {
    "family": "gpt2",
    "vocabulary": 30,
    "hidden": 16,
    "layers": 2,
    "heads": 2,
    "kv-heads": 2,
    "head-size": 8,
    "feed-forward": 32,
    "context": 24,
    "norm": "layer",
    "activation": "gelu_tanh",
    "gated": False,
    "positions": "learned",
    "fused-attention": True,
    "attention-bias": True,
    "output-bias": True,
    "feed-forward-bias": True,
}
"""The same as ``[model.options.architecture]`` of ``language:custom``."""

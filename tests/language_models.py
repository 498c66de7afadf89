"""A language model small enough for every test: two blocks, sixteen wide, thirty symbols."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from coordinator.data.datasets import Dataset
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


def sentences(path: Path | None, seed: int, holdout: float) -> Dataset:
    """Windows of eight symbols, each the one before plus the window's own step; a sixth of them is noise."""
    generator = np.random.default_rng(seed)
    count, length = 240, 8
    first, step = generator.integers(0, 30, (count, 1)), generator.integers(1, 4, (count, 1))
    whole = (first + step * np.arange(length + 1)) % 30
    whole = np.where(generator.random(whole.shape) < 1 / 6, generator.integers(0, 30, whole.shape), whole)
    x, y = whole[:, :-1].astype(np.int64), whole[:, 1:].astype(np.int64)
    kept = count - round(holdout * count)
    return Dataset(x[:kept], y[:kept], x[kept:], y[kept:], ("0",))


def run_text(*, method: str = "fedlora", options: str = "levels = [4, 2]", rounds: int = 2, base: str = "int8") -> str:
    """A run file of the tiny model: three devices, the first one with the largest level."""

    def toml(value: object) -> str:
        return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')

    parts = "\n".join(f"{key} = {toml(value)}" for key, value in PARTS.items())
    return f"""
[federation]
name = "words"
rounds = {rounds}
seed = 5
[model]
build = "language:custom"
input = [8]
[model.options]
base = "{base}"
[model.options.architecture]
{parts}
[task]
name = "next-token"
[method]
name = "{method}"
{options}
[data]
source = "tests.language_models:sentences"
[training]
optimizer = "adam"
lr = 0.02
batch = 8
[evaluation]
norm = "running"
[[cohort.local]]
count = 1
level = "4"
[[cohort.local]]
count = 2
level = "2"
"""

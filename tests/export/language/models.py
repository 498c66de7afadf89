"""Small language models of every family, with factors or additions beside their layers, and a step for them."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from coordinator.submodels.additions import with_addition
from coordinator.submodels.lora import AdditiveLinear
from coordinator.submodels.record import Added
from export.language.additions import is_beside_base
from export.language.architecture import Architecture, Precision
from export.language.causal_model import ADAPTED, CausalModel, meta_model, token_input
from export.training_step import BatchTensor, StepSpec

LENGTH, RANK = 16, 4
_COMMON: dict[str, Any] = {
    "vocabulary": 97,
    "hidden": 64,
    "layers": 2,
    "heads": 4,
    "head_size": 16,
    "feed_forward": 128,
    "context": 32,
}
FAMILIES = {
    "gpt2": Architecture(
        family="gpt2", kv_heads=4, norm="layer", norm_epsilon=1e-5, activation="gelu_tanh", gated=False,
        positions="learned", fused_attention=True, attention_bias=True, output_bias=True, feed_forward_bias=True,
        **_COMMON,
    ),
    "llama": Architecture(family="llama", kv_heads=2, **_COMMON),
    "qwen2": Architecture(family="qwen2", kv_heads=2, attention_bias=True, tied=False, **_COMMON),
    "gemma3": Architecture(
        family="gemma3", kv_heads=1, norm_offset=True, activation="gelu_tanh", windows=(5, 0), query_norm=True,
        post_norms=True, embedding_scale=8.0, attention_scale=0.2, **_COMMON,
    ),
}  # fmt: skip


def with_factors(
    model: CausalModel, patterns: Iterable[str] = ADAPTED, *, blocks: Iterable[int] = range(99), rank: int = RANK
) -> CausalModel:
    """``model`` with factors beside the linear layers that match, in place."""
    known = list(patterns)
    for name, layer in list(model.named_modules()):
        is_chosen = any(fnmatchcase(name, pattern) for pattern in known)
        if type(layer) is nn.Linear and is_chosen and int(name.split(".")[1]) in blocks:
            path, _, last = name.rpartition(".")
            with torch.device(layer.weight.device):
                factored = AdditiveLinear(layer, rank)
            setattr(model.get_submodule(path), last, factored.to(layer.weight.device))
    return model


def small_cut(family: str, precision: Precision = "int8", **choice: Any) -> CausalModel:
    """A cut of the small model of ``family``, without values."""
    return with_factors(meta_model(FAMILIES[family], precision), **choice)


def step_of(model: CausalModel, *, frozen: Iterable[str] = (), length: int = LENGTH, **choice: Any) -> StepSpec:
    """The step that trains the factors and additions of ``model`` but those named ``frozen``."""
    shape, held = model.architecture, set(frozen)
    names = [n for n, _ in model.named_parameters() if not is_beside_base(n) or n in held]
    return StepSpec(
        input=token_input(shape, length),
        classes=shape.vocabulary,
        batch=choice.pop("batch", 4),
        task="next-token",
        tensors=(BatchTensor("y", (length,), "int64", symbols=shape.vocabulary),),
        frozen=tuple(names),
        **choice,
    )


ADDED = {"adapter": 6, "prefix": 3, "prompt": 5}
"""Kind -> units or virtual positions."""


def added_cut(
    family: str, kind: str, precision: Precision = "int8", *, blocks: Iterable[int] = range(99), size: int = 0
) -> CausalModel:
    """The small model of ``family`` with additions of ``kind`` in ``blocks``, without values."""
    made, size = meta_model(FAMILIES[family], precision), size or ADDED[kind]
    record = Added("adapter", size=size) if kind == "adapter" else Added(kind, length=size)  # type: ignore[arg-type]
    places = {"adapter": "blocks.{}.feed_forward", "prefix": "blocks.{}.attention", "prompt": "embedding"}
    chosen = [n for n in range(made.architecture.layers) if n in list(blocks)]
    for path in dict.fromkeys(places[kind].format(number) for number in chosen):
        with_addition(path, made.get_submodule(path), record)
    return made

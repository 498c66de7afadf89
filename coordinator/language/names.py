"""Names of a language model's tensors in the files of its family, and here."""

from __future__ import annotations

from typing import NamedTuple

from edge.contracts.errors import ConfigError
from export.language.architecture import Architecture


class SourceName(NamedTuple):
    """A tensor in a family's files.

    Attributes:
        name: with the prefix of the whole model.
        is_transposed: whether it is held [inputs, outputs].
    """

    name: str
    is_transposed: bool = False


PREFIX = {"gpt2": "transformer.", "llama": "model.", "qwen2": "model.", "gemma3": "model."}
"""Of every tensor but the head; some files leave it out."""

HEAD = "lm_head.weight"

_GPT2 = {
    "embedding": "wte",
    "positions": "wpe",
    "norm": "ln_f",
    "attention_norm": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}
_ROTARY = {
    "embedding": "embed_tokens",
    "norm": "norm",
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
}
_GEMMA3 = {
    **_ROTARY,
    "attention_post_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_post_norm": "post_feedforward_layernorm",
}
_PARTS = {"gpt2": _GPT2, "llama": _ROTARY, "qwen2": _ROTARY, "gemma3": _GEMMA3}
_CONV1D = {"attention.qkv", "attention.output", "feed_forward.up", "feed_forward.down"}
"""Parts that GPT-2's files hold as [inputs, outputs]."""


def source_name(architecture: Architecture, name: str) -> SourceName:
    """Where the files of the family hold tensor ``name``.

    Raises:
        ConfigError: the family has no such part.
    """
    if name == "head.weight":
        return SourceName(HEAD)
    family = architecture.family
    path, _, kind = name.rpartition(".")
    module = source_module(architecture, path)
    _, part = _split(path)
    return SourceName(f"{module}.{kind}", family == "gpt2" and part in _CONV1D and kind == "weight")


def source_module(architecture: Architecture, path: str) -> str:
    """Name of the module at ``path`` in the family's own class.

    Raises:
        ConfigError: as :func:`source_name`.
    """
    family = architecture.family
    number, part = _split(path)
    inner = _PARTS[family].get(part)
    if inner is None:
        raise ConfigError([f"files of {family} have no place for '{path}'; write another format"])
    layers = "h" if family == "gpt2" else "layers"
    return f"{PREFIX[family]}{f'{layers}.{number}.' if number else ''}{inner}"


def _split(path: str) -> tuple[str, str]:
    """Number of the block, empty outside of them, and the part."""
    if not path.startswith("blocks."):
        return "", path
    _, number, part = path.split(".", 2)
    return number, part


def is_ignored(architecture: Architecture, name: str) -> bool:
    """Whether a tensor of a file says nothing: masks, tables of rotations, the head of a tied model."""
    if name == HEAD:
        return architecture.tied
    return name.endswith((".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"))

"""A language model as a GGUF file, by the package ``gguf``: for llama.cpp and what is built on it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edge.contracts.errors import ConfigError
from export.language.architecture import Architecture

Precision = Literal["float32", "int8"]

_ARCHITECTURES = {"gpt2": "gpt2", "llama": "llama", "qwen2": "qwen2", "gemma3": "gemma3"}
_OUTSIDE = {"embedding": "token_embd", "positions": "position_embd", "norm": "output_norm", "head": "output"}
_INSIDE = {
    "attention_norm": "attn_norm",
    "attention_post_norm": "post_attention_norm",
    "attention.qkv": "attn_qkv",
    "attention.query": "attn_q",
    "attention.key": "attn_k",
    "attention.value": "attn_v",
    "attention.output": "attn_output",
    "attention.query_norm": "attn_q_norm",
    "attention.key_norm": "attn_k_norm",
    "feed_forward_norm": "ffn_norm",
    "feed_forward_post_norm": "post_ffw_norm",
    "feed_forward.gate": "ffn_gate",
    "feed_forward.up": "ffn_up",
    "feed_forward.down": "ffn_down",
}
_GEMMA_PATTERN = 6
"""Blocks from one that sees everything to the next, which readers of the file take for granted."""
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen2's tokenizer cuts a text into words."""
_BLOCK = 32
"""Inputs that share a step in Q8_0."""


def gguf_name(name: str) -> str:
    """Tensor ``name`` of the module in a file."""
    path, _, kind = name.rpartition(".")
    if not path.startswith("blocks."):
        return f"{_OUTSIDE[path]}.{kind}"
    _, number, part = path.split(".", 2)
    return f"blk.{number}.{_INSIDE[part]}.{kind}"


def write_gguf(
    path: Path,
    architecture: Architecture,
    values: Iterable[tuple[str, np.ndarray]],
    *,
    precision: Precision,
    title: str,
    tokenizer: Path | None = None,
) -> str:
    """Write the model at ``path``; why its tokenizer is not in it, empty where it is.

    Args:
        values: every tensor of the module, all of which are in memory until the file is written.
        precision: ``int8`` is Q8_0: a step for every 32 inputs, of the matrices whose inputs are whole blocks.
        tokenizer: its ``tokenizer.json``.

    Raises:
        ConfigError: the package is not installed, or a switch of the architecture that readers of the file do not know.
    """
    library = _package()
    _check(architecture)
    writer = library.GGUFWriter(path, _ARCHITECTURES[architecture.family])
    _describe(writer, architecture, title)
    reason = _add_tokenizer(writer, library, architecture, tokenizer)
    kinds = library.GGMLQuantizationType
    for name, value in values:
        array = _as_held(architecture, name, value)
        is_small = precision == "int8" and array.ndim == 2 and not array.shape[1] % _BLOCK
        if is_small and not name.startswith("positions."):
            writer.add_tensor(gguf_name(name), library.quantize(array, kinds.Q8_0), raw_dtype=kinds.Q8_0)
        else:
            writer.add_tensor(gguf_name(name), array)
        if name == "embedding.weight" and architecture.family == "gpt2" and architecture.tied:
            # Readers of this family want its head, tied or not.
            writer.add_tensor("output.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return reason


def _package() -> Any:
    try:
        return importlib.import_module("gguf")
    except ImportError as error:
        raise ConfigError(
            ["--format: gguf is written with the package gguf, which is not here"],
            hint="pip install 'apportion[gguf]'",
        ) from error


def _check(shape: Architecture) -> None:
    """Raises ConfigError for what a reader of the file would silently compute otherwise."""
    problems = []
    if not np.isclose(shape.scale, shape.head_size**-0.5, rtol=1e-6):
        problems.append(f"scores are scaled by {shape.scale:g}, readers take {shape.head_size**-0.5:g}")
    pattern = tuple(max(shape.windows, default=0) if (n + 1) % _GEMMA_PATTERN else 0 for n in range(shape.layers))
    if any(shape.windows) and (shape.family != "gemma3" or shape.windows != pattern):
        problems.append(f"windows {shape.windows}, readers take none, or of gemma3 {_GEMMA_PATTERN - 1} of 6 blocks")
    if problems:
        raise ConfigError([f"--format: gguf cannot say that {'; '.join(problems)}; write another format"])


def _describe(writer: Any, shape: Architecture, title: str) -> None:
    writer.add_name(title)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(0)
    if shape.norm == "layer":
        writer.add_layer_norm_eps(shape.norm_epsilon)
        return
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(shape.rotary_theta)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    if any(shape.windows):
        writer.add_sliding_window(max(shape.windows))
        writer.add_float32(f"{_ARCHITECTURES[shape.family]}.rope.freq_base_swa", shape.local_rotary_theta)


def _as_held(shape: Architecture, name: str, value: np.ndarray) -> np.ndarray:
    """Norms with their offset; of Llama, queries and keys in the order of neighbouring pairs."""
    if shape.norm_offset and value.ndim == 1 and name.endswith("norm.weight"):
        return np.float32(1.0) + value
    heads = shape.heads if ".attention.query." in name else shape.kv_heads if ".attention.key." in name else 0
    if shape.family != "llama" or not heads:
        return value
    pairs = value.reshape(heads, 2, shape.head_size // 2, *value.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(value.shape))


def _add_tokenizer(writer: Any, library: Any, shape: Architecture, path: Path | None) -> str:
    """Why it was not added; empty where it was."""
    if path is None:
        writer.add_tokenizer_model("none")
        return "no tokenizer.json was given"
    found = json.loads(path.read_text(encoding="utf-8"))
    rule = word_rule(found.get("pre_tokenizer"))
    if found.get("model", {}).get("type") != "BPE" or not rule:
        writer.add_tokenizer_model("none")
        return f"{path.name} has rules that have no name in the file; give the tokenizer beside it"
    kinds = library.TokenType
    tokens: list[str | None] = [None] * shape.vocabulary
    types = [int(kinds.UNUSED)] * shape.vocabulary
    added = {entry["content"]: entry["id"] for entry in found.get("added_tokens", [])}
    for content, number in {**found["model"]["vocab"], **added}.items():
        if number < shape.vocabulary:
            tokens[number] = content
            types[number] = int(kinds.CONTROL if content in added else kinds.NORMAL)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in found["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list([f"[PAD{number}]" if token is None else token for number, token in enumerate(tokens)])
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    from edge.language.tokenizer import Tokenizer

    if (end := Tokenizer(path).end) is not None and end < shape.vocabulary:
        writer.add_eos_token_id(end)
        writer.add_bos_token_id(end)
    writer.add_add_bos_token(False)
    return ""


def word_rule(found: Any) -> str:
    """What readers call the way of cutting a text into words; empty where they have no name for it."""
    parts = found.get("pretokenizers", [found]) if isinstance(found, dict) else []
    kinds = [part.get("type") for part in parts if isinstance(part, dict)]
    if kinds == ["ByteLevel"] and parts[0].get("use_regex", True):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and parts[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and parts[0].get("pattern", {}).get("Regex") == _QWEN2_WORDS:
        return "qwen2"
    return ""

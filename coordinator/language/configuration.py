"""A public model's ``config.json`` as an :class:`Architecture`, and the way back.

What no step computes is refused by its key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from edge.contracts.errors import ConfigError
from export.language.architecture import Architecture

CONFIG = "config.json"

Family = Literal["gpt2", "llama", "qwen2", "gemma3"]

FAMILIES: dict[str, Family] = {"gpt2": "gpt2", "llama": "llama", "qwen2": "qwen2", "gemma3_text": "gemma3"}
"""``model_type`` of a file -> family."""

_CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
_TANH_GELU = ("gelu_new", "gelu_pytorch_tanh")
_GEMMA_PATTERN = 6
"""Blocks from one without a window to the next, where a file does not name them."""


def read_configuration(folder: Path) -> dict[str, Any]:
    """The object in ``config.json`` of ``folder``.

    Raises:
        ConfigError: there is none, or it is no JSON object.
    """
    path = folder / CONFIG
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(
            [f"{folder}: no model there, it has no {CONFIG}"], hint="give the folder that save_pretrained wrote"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError([f"{path}: cannot be read ({error}); copy it again"]) from error
    if not isinstance(found, dict):
        raise ConfigError([f"{path}: is a {type(found).__name__}, an object expected; copy it again"])
    return found


def read_architecture(folder: Path) -> Architecture:
    """What the model in ``folder`` is made of, by its ``config.json``.

    Raises:
        ConfigError: no such file, a model of another type, or a setting that no step here computes; each by its key.
    """
    return architecture_of(read_configuration(folder), where=str(folder / CONFIG))


def architecture_of(values: Mapping[str, Any], *, where: str) -> Architecture:
    """The architecture that the object of a ``config.json`` describes; raises as :func:`read_architecture`.

    Args:
        where: the file, for messages.
    """
    kind = values.get("model_type")
    if kind not in FAMILIES:
        step = "give the text model alone" if kind == "gemma3" else f"known: {', '.join(FAMILIES)}"
        raise ConfigError([f"{where}: model_type is {kind!r}; {step}"])
    keys = _Keys(where, values)
    if values.get("quantization_config"):
        keys.refuse("quantization_config", "give the model in float32, float16 or bfloat16")
    settings = _gpt2(keys) if kind == "gpt2" else _rotary(keys, FAMILIES[kind])
    if keys.problems:
        raise ConfigError(keys.problems)
    try:
        return Architecture(family=FAMILIES[kind], **settings)
    except ValueError as error:
        raise ConfigError([f"{where}: {error}"]) from error


class _Keys:
    """The keys of one file; what is wrong is gathered."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where, self.values = where, values
        self.problems: list[str] = []

    def refuse(self, key: str, step: str, value: Any = None) -> None:
        shown = repr(self.values.get(key) if value is None else value)
        self.problems.append(f"{self.where}: {key} is {shown[:120]}; {step}")

    def whole(self, key: str, default: int = 0) -> int:
        value = self.values.get(key)
        if value is None and default:
            return default
        if type(value) is not int or not 1 <= value <= 2**31:
            self.refuse(key, "a whole number from 1 expected")
            return 1
        return value

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key)
        if value is None:
            return default
        if type(value) not in (int, float) or not 0 < value < 1e12:
            self.refuse(key, "a number above 0 expected")
            return default
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value not in (None, True, False):
            self.refuse(key, "true or false expected")
        return default if value is None else bool(value)

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse any value but those; a key that is not there is the first of them."""
        if self.values.get(key, allowed[0]) not in (None, *allowed):
            self.refuse(key, f"no step here computes that, only {' or '.join(map(repr, allowed))}")


def _gpt2(keys: _Keys) -> dict[str, Any]:
    keys.only("activation_function", *_TANH_GELU)
    keys.only("scale_attn_by_inverse_layer_idx", False)
    keys.only("add_cross_attention", False)
    hidden, heads = keys.whole("n_embd", 768), keys.whole("n_head", 12)
    if hidden % heads:
        keys.refuse("n_head", f"n_embd {hidden} is no multiple of it")
    return {
        "vocabulary": keys.whole("vocab_size"),
        "hidden": hidden,
        "layers": keys.whole("n_layer", 12),
        "heads": heads,
        "kv_heads": heads,
        "head_size": max(1, hidden // heads),
        "feed_forward": keys.whole("n_inner", 4 * hidden),
        "context": keys.whole("n_positions", 1024),
        "norm": "layer",
        "norm_epsilon": keys.number("layer_norm_epsilon", 1e-5),
        "activation": "gelu_tanh",
        "gated": False,
        "positions": "learned",
        "fused_attention": True,
        "attention_bias": True,
        "output_bias": True,
        "feed_forward_bias": True,
        "attention_scale": 0.0 if keys.flag("scale_attn_weights", True) else 1.0,
        "tied": keys.flag("tie_word_embeddings", True),
    }


def _rotary(keys: _Keys, family: Family) -> dict[str, Any]:
    """Llama, Qwen2 and Gemma 3."""
    is_gemma = family == "gemma3"
    hidden, heads, layers = (
        keys.whole("hidden_size"),
        keys.whole("num_attention_heads"),
        keys.whole("num_hidden_layers"),
    )
    windows = _windows(keys, family, layers)
    theta = _theta(keys, "full_attention", keys.number("rope_theta", 1e6 if is_gemma else 1e4))
    local = _theta(keys, "sliding_attention", keys.number("rope_local_base_freq", 1e4) if is_gemma else theta)
    bias = keys.flag("attention_bias", False)
    found: dict[str, Any] = {
        "vocabulary": keys.whole("vocab_size"),
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "kv_heads": keys.whole("num_key_value_heads", heads),
        "head_size": keys.whole("head_dim", max(1, hidden // heads)),
        "feed_forward": keys.whole("intermediate_size"),
        "context": keys.whole("max_position_embeddings"),
        "norm_epsilon": keys.number("rms_norm_eps", 1e-6),
        "rotary_theta": theta,
        "local_rotary_theta": local,
        "windows": windows,
        "attention_bias": family == "qwen2" or bias,
        "output_bias": family != "qwen2" and bias,
        "tied": keys.flag("tie_word_embeddings", is_gemma),
    }
    if not is_gemma:
        keys.only("hidden_act", "silu")
        return {**found, "feed_forward_bias": keys.flag("mlp_bias", False)}
    keys.only("hidden_activation", "gelu_pytorch_tanh")
    keys.only("attn_logit_softcapping", None)
    keys.only("final_logit_softcapping", None)
    keys.only("use_bidirectional_attention", False)
    return {
        **found,
        "norm_offset": True,
        "activation": "gelu_tanh",
        "query_norm": True,
        "post_norms": True,
        "embedding_scale": hidden**0.5,
        "attention_scale": keys.number("query_pre_attn_scalar", 256) ** -0.5,
    }


def _windows(keys: _Keys, family: Family, layers: int) -> tuple[int, ...]:
    """Positions that each block sees; empty where all see everything."""
    kinds = keys.values.get("layer_types")
    if kinds is None and family == "gemma3":
        pattern = keys.whole("sliding_window_pattern", keys.whole("_sliding_window_pattern", _GEMMA_PATTERN))
        kinds = ["sliding_attention" if (n + 1) % pattern else "full_attention" for n in range(layers)]
    if kinds is None and keys.flag("use_sliding_window", False) and keys.values.get("sliding_window"):
        first = keys.values.get("max_window_layers", 28)
        kinds = ["sliding_attention" if n >= first else "full_attention" for n in range(layers)]
    if kinds is None:
        return ()
    if not isinstance(kinds, list) or set(kinds) - {"sliding_attention", "full_attention"} or len(kinds) != layers:
        keys.refuse("layer_types", f"{layers} of 'full_attention' or 'sliding_attention' expected")
        return ()
    if "sliding_attention" not in kinds:
        return ()
    if family == "llama":
        keys.refuse("layer_types", "models of this type see everything before a position")
        return ()
    size = keys.whole("sliding_window", 4096)
    return tuple(size if kind == "sliding_attention" else 0 for kind in kinds)


def _theta(keys: _Keys, kind: str, default: float) -> float:
    """Base of the rotations of blocks of that kind; files up to 2025 have it beside ``rope_scaling``."""
    for key in ("rope_parameters", "rope_scaling"):
        found = keys.values.get(key)
        if not found:
            continue
        if isinstance(found, dict) and any(isinstance(value, dict) for value in found.values()):
            found = found.get(kind)
            if found is None:
                return default
        if not isinstance(found, dict):
            keys.refuse(key, "an object expected")
            return default
        if (name := found.get("rope_type", found.get("type", "default"))) != "default":
            if kind == "full_attention":  # said once
                keys.refuse(key, f"scaled rotations ({name}) have no step here; give a model without", found)
            return default
        if found.get("partial_rotary_factor", 1.0) != 1.0:
            keys.refuse(key, "heads that are rotated in part have no step here", found)
        return _Keys(keys.where, found).number("rope_theta", default)
    if keys.values.get("partial_rotary_factor") not in (None, 1, 1.0):
        keys.refuse("partial_rotary_factor", "heads that are rotated in part have no step here")
    return default


def configuration_of(architecture: Architecture, **more: Any) -> dict[str, Any]:
    """The object of a ``config.json`` for ``architecture``, in the keys that every release of the library reads.

    Args:
        more: further keys, such as ``eos_token_id``; None is left out.

    Raises:
        ConfigError: the family's files have no key for some switch of it; the fields are named.
    """
    shape = architecture
    found: dict[str, Any] = {
        "architectures": [_CLASSES[shape.family]],
        "model_type": next(kind for kind, family in FAMILIES.items() if family == shape.family),
        "torch_dtype": "float32",
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied,
        **{key: value for key, value in more.items() if value is not None},
    }
    found |= _gpt2_keys(shape) if shape.family == "gpt2" else _rotary_keys(shape)
    back, wanted = _plain(architecture_of(found, where=f"the {shape.family} model")), _plain(shape)
    if back != wanted:
        fields = [name for name in shape.__struct_fields__ if getattr(back, name) != getattr(wanted, name)]
        shown = ", ".join(f"{name} {getattr(shape, name)!r}" for name in fields)
        raise ConfigError([f"a {CONFIG} of {shape.family} cannot say: {shown}; write another format"])
    return found


def _plain(shape: Architecture) -> Architecture:
    """The same model with nothing said that makes no difference."""
    windows = shape.windows if any(shape.windows) else ()
    local = shape.local_rotary_theta if windows else shape.rotary_theta
    return msgspec.structs.replace(shape, attention_scale=shape.scale, windows=windows, local_rotary_theta=local)


def _gpt2_keys(shape: Architecture) -> dict[str, Any]:
    return {
        "n_embd": shape.hidden,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_inner": shape.feed_forward,
        "n_positions": shape.context,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": shape.norm_epsilon,
        "scale_attn_weights": shape.attention_scale != 1.0,
        # Trained without.
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    }


def _rotary_keys(shape: Architecture) -> dict[str, Any]:
    found: dict[str, Any] = {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "intermediate_size": shape.feed_forward,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rotary_theta,
    }
    kinds = ["sliding_attention" if window else "full_attention" for window in shape.windows]
    if shape.windows:
        found |= {"layer_types": kinds, "sliding_window": max(shape.windows)}
    if shape.family == "gemma3":
        # A scale that no whole number gives is found when it is read back.
        scalar = round(shape.scale**-2)
        return {
            **found,
            "layer_types": kinds or ["full_attention"] * shape.layers,
            "rope_local_base_freq": shape.local_rotary_theta,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": scalar,
            "attention_bias": shape.attention_bias,
        }
    found["hidden_act"] = shape.activation
    if shape.family == "qwen2":
        return {**found, **({"use_sliding_window": True, "max_window_layers": 0} if shape.windows else {})}
    return {**found, "attention_bias": shape.attention_bias, "mlp_bias": shape.feed_forward_bias}

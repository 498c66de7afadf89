"""Tiny models of each family in the classes of ``transformers``, with random weights, for what is held against them."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import torch

NAMES = ("gpt2", "llama", "llama_untied", "qwen2", "qwen2_windows", "gemma3")
VOCABULARY, CONTEXT = 97, 48
_ROTARY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
}


class PublicModels:
    """The models by name; made once, for importing their classes takes seconds."""

    def __init__(self) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        self.library = importlib.import_module("transformers")
        for name in NAMES:
            self.model(name)

    def configuration(self, name: str) -> Any:
        """Its configuration object."""
        library = self.library
        match name:
            case "gpt2":
                return library.GPT2Config(
                    vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=24, n_layer=2, n_head=4,
                    bos_token_id=96, eos_token_id=96,
                )  # fmt: skip
            case "llama":
                return library.LlamaConfig(**_ROTARY, tie_word_embeddings=True, rms_norm_eps=1e-5, rope_theta=5e3)
            case "llama_untied":
                return library.LlamaConfig(**_ROTARY, attention_bias=True, mlp_bias=True)
            case "qwen2":
                return library.Qwen2Config(**_ROTARY, tie_word_embeddings=True, rope_theta=1e6)
            case "qwen2_windows":
                windows = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
                return library.Qwen2Config(**_ROTARY, **windows)
            case _:
                windows = {"sliding_window": 7, "sliding_window_pattern": 3}
                return library.Gemma3TextConfig(**_ROTARY, **windows, query_pre_attn_scalar=16)

    def model(self, name: str, seed: int = 0) -> Any:
        """The model with every tensor random, norms and biases too."""
        torch.manual_seed(seed)
        auto = self.library.AutoModelForCausalLM
        model = auto.from_config(self.configuration(name), attn_implementation="eager").eval()
        with torch.no_grad():
            for value in model.parameters():
                value.add_(0.1 * torch.randn_like(value))
        return model

    def saved(self, name: str, folder: Path, **more: Any) -> Any:
        """The model, written to ``folder``."""
        model = self.model(name)
        model.save_pretrained(folder, **more)
        return model

    def loaded(self, folder: Path, **more: Any) -> Any:
        """The model that its own class loads from ``folder``."""
        auto = self.library.AutoModelForCausalLM
        return auto.from_pretrained(folder, attn_implementation="eager", **more).eval()


def symbols(batch: int = 2, length: int = 20, seed: int = 1) -> torch.Tensor:
    """Random symbols [batch, length]."""
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))

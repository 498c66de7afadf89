"""What a run has trained of virtual positions as a folder of ``peft``: ``PREFIX_TUNING`` and ``PROMPT_TUNING``.

Both have the virtual positions where :mod:`export.language.additions` has them, so that nothing is turned or scaled.
"""

# Dims: P virtual positions, L blocks, K key heads, H head size, D hidden.

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from coordinator.language.peft_adapter import CONFIG, WEIGHTS
from coordinator.language.tensor_files import write_tensors
from edge.contracts.errors import PlanError
from export.language.additions import is_addition
from export.language.architecture import Architecture

PROMPT = "embedding.prompt.tokens"


def addition_kind(tensors: Mapping[str, np.ndarray]) -> str:
    """``adapter``, ``prefix`` or ``prompt``, whose tensors a run's state holds; empty where it holds factors."""
    name = next(iter(tensors), "")
    return name.split(".")[-2] if is_addition(name) else ""


def write_virtual(folder: Path, architecture: Architecture, tensors: Mapping[str, np.ndarray], *, base: str) -> None:
    """Write the prefix or prompt in ``tensors`` into ``folder``, which is there and empty.

    Args:
        base: folder or name of the model that it is for.

    Raises:
        PlanError: a prefix of some blocks alone, of which the package has none.
    """
    shape = architecture
    configuration = {
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "num_transformer_submodules": 1,
        "num_layers": shape.layers,
    }
    if addition_kind(tensors) == "prompt":
        made = tensors[PROMPT]
        configuration |= {
            "peft_type": "PROMPT_TUNING",
            "prompt_tuning_init": "RANDOM",
            "token_dim": shape.hidden,
            "num_attention_heads": shape.heads,
        }
    else:
        made = _prefix(shape, tensors)
        configuration |= {
            "peft_type": "PREFIX_TUNING",
            "prefix_projection": False,
            "token_dim": shape.kv_heads * shape.head_size,
            "num_attention_heads": shape.kv_heads,
        }
    configuration["num_virtual_tokens"] = len(made)
    values = {"prompt_embeddings": made.astype(np.float32)}
    write_tensors(folder / WEIGHTS, {name: (v.shape, "float32") for name, v in values.items()}, values.items())
    (folder / CONFIG).write_text(json.dumps(configuration, indent=2) + "\n", encoding="utf-8")


def _prefix(shape: Architecture, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """[P, L 2 K H]: of each block its keys, then its values."""
    names = [f"blocks.{n}.attention.prefix.{part}" for n in range(shape.layers) for part in ("keys", "values")]
    if missing := [name for name in names if name not in tensors]:
        raise PlanError(
            f"'{missing[0]}' was not trained, and a prefix of peft is in every block; train with depths = "
            f"[{shape.layers}], or keep the run's final.safetensors"
        )
    return np.concatenate([tensors[name] for name in names], axis=1)

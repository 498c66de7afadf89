"""What a run has trained as an adapter folder of the package ``peft``: LoRA, B our u and A our v, scaled by 1."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np

from coordinator.language.merge import Factors
from coordinator.language.names import source_module
from coordinator.language.tensor_files import write_tensors
from edge.contracts.errors import PlanError
from export.language.architecture import Architecture

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def write_adapter(folder: Path, architecture: Architecture, factors: Factors, *, base: str) -> None:
    """Write the adapter into ``folder``, which is there and empty.

    Args:
        base: folder or name of the model that it is for.

    Raises:
        PlanError: no layer has factors.
    """
    if not factors:
        raise PlanError("the run has trained no factors, so there is no adapter; give a run that has")
    modules = {path: source_module(architecture, path) for path in factors}
    ranks = {modules[path]: int(u.shape[1]) for path, (u, _) in factors.items()}
    ((rank, _),) = Counter(ranks.values()).most_common(1)
    others = {re.escape(name): value for name, value in ranks.items() if value != rank}
    configuration = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        # Divided by the rank: a scale of 1.
        "lora_alpha": rank,
        "rank_pattern": others,
        "alpha_pattern": others,
        "target_modules": list(ranks),
        "fan_in_fan_out": architecture.family == "gpt2",
        "lora_dropout": 0.0,
        "bias": "none",
    }
    tensors: dict[str, np.ndarray] = {}
    for path, (u, v) in factors.items():
        prefix = f"base_model.model.{modules[path]}"
        tensors[f"{prefix}.lora_A.weight"] = v.astype(np.float32)
        tensors[f"{prefix}.lora_B.weight"] = u.astype(np.float32)
    write_tensors(folder / WEIGHTS, {name: (v.shape, "float32") for name, v in tensors.items()}, tensors.items())
    (folder / CONFIG).write_text(json.dumps(configuration, indent=2) + "\n", encoding="utf-8")

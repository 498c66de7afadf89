"""The key of the export cache: a digest over everything that decides the bytes of an artifact."""

from __future__ import annotations

import hashlib
import inspect
from typing import TYPE_CHECKING, Any

import msgspec

from export.tasks.task_class import task_class
from export.training_step import StepSpec, step_values

if TYPE_CHECKING:
    from torch import nn

EXPORTER_VERSION = "6"
"""Raised whenever a change of the exporter changes the graphs it writes."""


def export_key(module: nn.Module, spec: StepSpec, *, runtime: str, runtime_version: str, build: dict[str, Any]) -> str:
    """SHA-256 over everything that decides the bytes of an artifact: the key of the export cache.

    Covers the module's classes and a task's (their source), its layers, their numbers and tensor shapes, the step, and
    all versions; not weights.
    """
    import torch

    sources: dict[str, str] = {}
    for part in module.modules():
        kind = type(part)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name not in sources and not kind.__module__.startswith("torch."):
            sources[name] = _source_digest(kind)
    if spec.task:
        kind = task_class(spec.task)
        sources[f"task {kind.__module__}.{kind.__qualname__}"] = _source_digest(kind)
    # Torch's own layers say how they are set up; a drop path or an attention with dropout may not.
    settings = {
        f"{name}.{attribute}": value
        for name, part in module.named_modules()
        if not type(part).__module__.startswith("torch.") or isinstance(part, torch.nn.MultiheadAttention)
        for attribute, value in sorted(vars(part).items())
        if isinstance(value, float) and not attribute.startswith("_")
    }
    canonical: dict[str, Any] = {
        "schema": "apportion.step/1",
        "exporter": EXPORTER_VERSION,
        "torch": str(torch.__version__),
        "runtime": runtime,
        "runtime_version": runtime_version,
        "step": step_values(spec),
        "build": build,
        "layers": [(name, f"{type(part).__qualname__}({part.extra_repr()})") for name, part in module.named_modules()],
        "tensors": [(name, list(value.shape), str(value.dtype)) for name, value in module.state_dict().items()],
        "sources": sources,
        **({"settings": settings} if any(settings.values()) else {}),
        **_language(module),
    }
    return hashlib.sha256(msgspec.json.encode(canonical, order="deterministic")).hexdigest()


def _language(module: nn.Module) -> dict[str, Any]:
    """What decides a language model's step beside its layers."""
    from export.language.causal_model import CausalModel

    if not isinstance(module, CausalModel):
        return {}
    return {"language": [msgspec.to_builtins(module.architecture), module.base_precision]}


def _source_digest(kind: type) -> str:
    """Digest of a class's source text, or of its bytecode where it was typed in rather than read from a file."""
    try:
        text = inspect.getsource(kind)
    except (OSError, TypeError):
        functions = [value for value in vars(kind).values() if inspect.isfunction(value)]
        text = repr([(f.__qualname__, f.__code__.co_code.hex(), f.__code__.co_names) for f in functions])
    return hashlib.sha256(text.encode()).hexdigest()

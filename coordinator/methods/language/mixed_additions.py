"""Whether a run's devices hold different parts of what a language model's method adds; said without its class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.methods.language import ADDITIONS


def mixes_additions(name: str, options: Mapping[str, Any]) -> bool:
    """Whether the method ``name`` has several sizes or depths of additions."""
    return name in ADDITIONS and any(len(_listed(options.get(key))) > 1 for key in ("levels", "depths"))


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]

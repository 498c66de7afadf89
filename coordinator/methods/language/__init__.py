"""Methods of language models: a frozen base that is mapped, factors or additions beside it, and nothing dense.

A name that other models have a method of, too, is that method's form for a :class:`CausalModel`.
"""

from __future__ import annotations

import importlib
from typing import Any

from edge.contracts.errors import ConfigError

ADDITIONS = ("adapter", "prefix", "prompt")
"""Those that train additions, each of whose entries is the same one on every device."""

LANGUAGE_METHODS: dict[str, str] = {
    "fedlora": "coordinator.methods.language.fedlora:LanguageFedLoRA",
    "ffa_lora": "coordinator.methods.language.ffa_lora:FFALoRA",
    "flora": "coordinator.methods.language.flora:FLoRA",
    **{name: f"coordinator.methods.language.{name}:Language{name.capitalize()}" for name in ADDITIONS},
}
"""Name -> ``module:class``, imported when used."""


def language_method_class(name: str) -> type[Any]:
    """The class of the method ``name`` for language models.

    Raises:
        ConfigError: it has none; lists those there are, and says why others cannot be.
    """
    if name not in LANGUAGE_METHODS:
        raise ConfigError(
            [
                f"$.method.name: {name} trains or decomposes weights that a language model holds in a base file which "
                f"nobody writes; its methods: {', '.join(sorted(LANGUAGE_METHODS))}"
            ]
        )
    module_name, _, class_name = LANGUAGE_METHODS[name].partition(":")
    found: type[Any] = getattr(importlib.import_module(module_name), class_name)
    return found

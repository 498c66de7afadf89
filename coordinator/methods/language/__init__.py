"""Methods of language models: a frozen base that is mapped, factors beside its projections, and nothing dense.

A name that other models have a method of, too, is that method's form for a :class:`CausalModel`.
"""

from __future__ import annotations

LANGUAGE_METHODS: dict[str, str] = {
    "fedlora": "coordinator.methods.language.fedlora:LanguageFedLoRA",
    "ffa_lora": "coordinator.methods.language.ffa_lora:FFALoRA",
    "flora": "coordinator.methods.language.flora:FLoRA",
}
"""Name -> ``module:class``, imported when used."""

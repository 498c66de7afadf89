"""A run's model as a form of its step has it: with shorter windows, or with its base in another precision."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import msgspec

from coordinator.language.source import BASE, is_language, source_of_build

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig
    from export.forms.step_form import StepForm


def in_model_form(config: RunConfig, form: StepForm) -> RunConfig:
    """``config`` with the window and the base of ``form``; itself where the form has neither."""
    if not form.window and not form.base:
        return config
    model = config.model
    options = {**model.options, BASE: form.base} if form.base else model.options
    changed = msgspec.structs.replace(model, input=(form.window,) if form.window else model.input, options=options)
    return msgspec.structs.replace(config, model=changed)


def whole_windows(config: RunConfig, form: StepForm, examples: int) -> int:
    """How many of the run's windows ``examples`` windows of ``form`` stand for, at least 1: the same symbols."""
    if not form.window:
        return examples
    return max(1, round(examples * form.window / config.model.input[0]))


def base_choices(config: RunConfig) -> tuple[tuple[str, int], ...]:
    """The precisions a device's base may have and the bytes of each, that of the run first, as ``""``.

    Nothing for other models.
    """
    if not is_language(config.model.build):
        return ()
    key = msgspec.json.encode([config.model.build, config.model.options], order="deterministic")
    return tuple((base, _base_bytes(_Named(config, key), base)) for base in ("", *config.planner.bases))


class _Named:
    """A configuration, equal to others of the same model."""

    def __init__(self, config: RunConfig, key: bytes) -> None:
        self.config, self.key = config, key

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Named) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@lru_cache(maxsize=16)
def _base_bytes(named: _Named, base: str) -> int:
    from coordinator.language.base import base_bytes
    from export.language.causal_model import meta_model

    source = source_of_build(named.config.model.build, named.config.model.options)
    module = meta_model(source.architecture, cast("Any", base or source.precision))
    return base_bytes(module)

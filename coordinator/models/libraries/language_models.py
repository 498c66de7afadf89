"""``language:NAME``: a causal language model whose values are in a base file; the module holds shapes alone.

See :mod:`coordinator.language.source` for the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn

from coordinator.language.source import BASE, source_of
from edge.contracts.errors import ConfigError
from edge.contracts.manifest import InputSpec
from export.language.base_weights import held
from export.language.causal_model import meta_model, token_input

_USUAL = 128
"""Symbols of a window where the run file names no length."""


def input_of(name: str, shape: tuple[int, ...] | None, options: Mapping[str, Any]) -> InputSpec:
    """See :class:`coordinator.models.libraries.library.LibraryModels`."""
    architecture = source_of(name, options).architecture
    if shape is not None and len(shape) != 1:
        raise ConfigError([f"$.model.input: {list(shape)} given, the length of a window expected, such as [{_USUAL}]"])
    try:
        return token_input(architecture, shape[0] if shape else min(_USUAL, architecture.context))
    except ValueError as error:
        raise ConfigError([f"$.model.input: language:{name}: {error}"]) from error


def build(name: str, spec: InputSpec, classes: int, options: Mapping[str, Any]) -> nn.Module:
    """See :class:`coordinator.models.libraries.library.LibraryModels`; on torch's meta device, every weight frozen."""
    source = source_of(name, options)
    try:
        held("", np.zeros((1, 64), np.float32), source.precision)
    except NotImplementedError as error:
        raise ConfigError([f"$.model.options.{BASE}: {source.precision} cannot be written yet; use int8"]) from error
    return meta_model(source.architecture, source.precision).requires_grad_(False)

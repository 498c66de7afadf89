"""A refusal with the type of its layer, which whoever refuses an operation does not know."""

from __future__ import annotations

from torch import nn

from edge.contracts.errors import ExportRefused
from export.capture import MODULE_ITSELF

STEP = "(the training step)"
"""In place of a layer's path: what no one layer is to blame for."""


def with_layer_type(error: ExportRefused, module: nn.Module) -> ExportRefused:
    """``error`` about the same layer of ``module``, its type named."""
    try:
        part = module.get_submodule("" if error.layer == MODULE_ITSELF else error.layer)
    except AttributeError:
        return error
    return ExportRefused(error.layer, error.reason, instead=error.instead, kind=type(part).__name__)

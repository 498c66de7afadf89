"""Layers and bare parameters of a module by path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.contracts.errors import PlanError

if TYPE_CHECKING:
    from torch import nn


def named_part(module: nn.Module, path: str) -> nn.Module | nn.Parameter:
    """The layer, or the parameter a module holds directly, at ``path``.

    Raises:
        PlanError: there is neither.
    """
    try:
        return module.get_submodule(path)
    except AttributeError:
        try:
            return module.get_parameter(path)
        except AttributeError as error:
            raise PlanError(f"the cut names layer '{path}', which {type(module).__name__} does not have") from error

"""Trained parts beside a frozen module's own: which class builds which form, and their first values.

What is there keeps its names and values, so that one file of weights serves the module with additions and without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from coordinator.submodels.adapters import AdapterLinear
from coordinator.submodels.differences import DifferenceLinear
from coordinator.submodels.language_additions import is_language_part, with_language_addition
from coordinator.submodels.prefixes import PrefixAttention
from coordinator.submodels.prompts import PromptTokens, with_prompt
from edge.contracts.errors import PlanError
from edge.contracts.streams import stream_seed

if TYPE_CHECKING:
    from coordinator.submodels.record import Added


def with_addition(path: str, part: nn.Module, added: Added) -> nn.Module:
    """What stands at ``path`` with the addition: a new module around the parameters of ``part``, or ``part`` itself.

    Raises:
        PlanError: a part that takes no such addition, or an addition without units or tokens.
    """
    if (added.form == "adapter" and added.size < 1) or (added.form == "prompt" and added.length < 1):
        raise PlanError(f"layer '{path}': {added} adds nothing; raise the level")
    if is_language_part(part):
        return with_language_addition(path, part, added)
    if added.form == "prefix" and min(added.size, added.length) < 1:
        raise PlanError(f"layer '{path}': {added} adds nothing; raise the level or the length")
    if added.form == "adapter":
        return AdapterLinear(path, part, added.size)
    if added.form == "difference":
        return DifferenceLinear(path, part)
    if added.form == "prefix":
        return PrefixAttention(path, part, added.size, added.length)
    return with_prompt(path, part, added.length)


def draw_additions(module: nn.Module, seed: int) -> None:
    """Give every addition of a cut module its first values, a function of ``seed`` and its path alone; in place."""
    for path, part in module.named_modules():
        if isinstance(part, AdapterLinear | PrefixAttention | PromptTokens):
            part.draw(stream_seed(seed, f"added {path}"))

"""The frozen prefix: which parameters lie in the stem and the first blocks of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn


def block_names(module: nn.Module) -> tuple[str, ...]:
    """Paths of a model's blocks in execution order, as its own structure shows them.

    Blocks are the elements with parameters of its Sequential and ModuleList children; what precedes them is the stem.
    A model without such children has its own children with parameters as blocks, and no stem.
    """
    from torch import nn

    elements = [
        f"{name}.{part}"
        for name, child in module.named_children()
        if isinstance(child, nn.Sequential | nn.ModuleList)
        for part, element in child.named_children()
        if any(True for _ in element.parameters())
    ]
    own = [name for name, child in module.named_children() if any(True for _ in child.parameters())]
    return tuple(elements or own)


def frozen_prefix(module: nn.Module, blocks: int) -> tuple[str, ...]:
    """Names of the parameters of the stem and the first ``blocks`` blocks; none for 0.

    Raises:
        ConfigError: the model has fewer blocks, or nothing would be left to train.
    """
    if not blocks:
        return ()
    names = block_names(module)
    parameters = [name for name, _ in module.named_parameters()]
    if blocks > len(names):
        raise ConfigError([f"--freeze: {blocks} blocks asked for, {type(module).__name__} has {len(names)}"])
    last = max(i for i, name in enumerate(parameters) if name.startswith(names[blocks - 1] + "."))
    if last + 1 == len(parameters):
        raise ConfigError([f"--freeze: {blocks} blocks are all of {type(module).__name__}; leave something to train"])
    return tuple(parameters[: last + 1])

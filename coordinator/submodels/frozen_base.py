"""A frozen module of which a few parts are trained: the records of the rest, the classifier, transformer blocks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from torch import nn

from coordinator.models.vit import Block
from coordinator.submodels.record import LayerCut
from edge.contracts.errors import ConfigError, PlanError


def frozen_but(module: nn.Module, kept: Collection[str]) -> dict[str, LayerCut]:
    """A record that freezes each layer and bare parameter, but for the layers at the paths ``kept``."""
    cut = {}
    for path, part in module.named_modules():
        own = [name for name, _ in part.named_parameters(recurse=False)]
        if not own or path in kept:
            continue
        is_leaf = len(own) == sum(1 for _ in part.parameters())
        for name in [path] if is_leaf else [f"{path}.{name}".lstrip(".") for name in own]:
            cut[name] = LayerCut(frozen=True)
    return cut


def classifier(module: nn.Module, heads: Sequence[str] | None) -> str:
    """Path of the linear layer that is trained itself: the one named, or the module's last one.

    Raises:
        ConfigError: not one linear layer of the module; lists what there is.
        PlanError: the module has none.
    """
    linear = [path for path, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise PlanError(f"{type(module).__name__} has no linear layer, so nothing to adapt; use fedhm or fedavg")
    if heads is None:
        return linear[-1]
    if len(heads) != 1 or heads[0] not in linear:
        raise ConfigError(
            [f"$.method.head: {list(heads)} given, one of the linear layers expected: {', '.join(linear)}"]
        )
    return heads[0]


def transformer_blocks(module: nn.Module, method: str, patterns: Sequence[str] | None = None) -> tuple[str, ...]:
    """Paths of the transformer blocks whose names match, in module order; all of them without patterns.

    Args:
        method: who asks, for the message.

    Raises:
        ConfigError: patterns that match no block; lists what there is.
        PlanError: the module has no transformer blocks.
    """
    blocks = [path for path, part in module.named_modules() if isinstance(part, Block)]
    if not blocks:
        raise PlanError(
            f"{method} needs a module with transformer blocks, {Block.__module__}.{Block.__qualname__}, which "
            f"{type(module).__name__} does not have; use vit, deit_tiny or vit_small, or another method"
        )
    chosen = tuple(p for p in blocks if patterns is None or any(fnmatchcase(p, pattern) for pattern in patterns))
    if not chosen:
        raise ConfigError(
            [f"$.method.layout: {list(patterns or ())} matches no transformer block; there are: {', '.join(blocks)}"]
        )
    return chosen

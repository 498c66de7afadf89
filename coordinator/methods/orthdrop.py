"""OrthDrop: every device trains the largest principal components of each layer, always the same, and all channels.

Source: the baseline of PriSM, section 5: its decomposition, aggregation and refresh without sampling or channel cuts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coordinator.config.method_options import Options
from coordinator.methods.prism import PriSM

if TYPE_CHECKING:
    from torch import nn


class OrthDrop(PriSM):
    """Options: PriSM's; ``sampling`` is ``top`` and ``rows`` is ``all`` unless given otherwise."""

    name = "orthdrop"

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a model that cannot be cut so."""
        self._prepare(module, Options(self.name, options), sampling="top", rows="all")

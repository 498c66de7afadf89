"""OrigDrop: every device trains the first channels of every layer, of the original, undecomposed weights.

Source: the baseline of PriSM, section 5, which is HeteroFL's cut with its keep ratios, batch statistics and plain
cross-entropy. Its published code divides by all devices; here entries are means over the devices that held them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coordinator.methods.heterofl import HeteroFL

if TYPE_CHECKING:
    from torch import nn

DEFAULTS = {
    "levels": (0.8, 0.6, 0.4, 0.2),
    "rounding": "ceil",
    "scaler": False,
    "loss": "cross_entropy",
    "norm": "batch",
}


class OrigDrop(HeteroFL):
    """Options: HeteroFL's, with PriSM's keep ratios as ``levels``, no scaler and plain cross-entropy unless given."""

    name = "origdrop"

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        """Raises ConfigError for unknown or impossible options, PlanError for a module that cannot be cut so."""
        super().__init__(module, {**DEFAULTS, **options})

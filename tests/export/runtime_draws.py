"""What draws look like on any device runtime: exported through its gate, and as many inputs as places that draw."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from export.bundle import export_artifact
from tests.export.test_draws import STEP, Drops, InTraining, around, seeded

PLACES = {"layers": 4, "functions": 2}
"""Module -> how many inputs its draws are."""


def check_draws(name: str, runtime: str, folder: Path) -> None:
    """Export the module ``name`` of :data:`PLACES` for ``runtime``."""
    module = seeded(Drops if name == "layers" else lambda: around(InTraining(_mixed)))
    manifest = export_artifact(module, STEP, folder / "artifact", runtime=runtime)
    assert len(manifest.specs("draw")) == PLACES[name]
    assert manifest.parity.max_grad_rel_err <= manifest.parity.tolerance


def _mixed(x: Tensor) -> Tensor:
    """A mask whose examples are in its second dimension, and noise written into a tensor."""
    return F.dropout(x.t(), 0.3).t() + torch.empty_like(x).uniform_(-0.1, 0.1)

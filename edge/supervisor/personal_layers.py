"""Layers that a device trains and keeps for itself: which file of the device holds them, and when it takes effect.

They are written beside an update and take their predecessor's place when the coordinator has accepted the report: an
order that is carried out again begins with the layers that it began with.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from edge.contracts.plan import WorkOrder

ABILITY = "personal-layers-1"
"""What a device that keeps such layers says in its hello."""
FOLDER = "personal"


def kept_at(folder: Path, order: WorkOrder) -> Path:
    """Where a device whose state is in ``folder`` has its own layers for the run of ``order``."""
    run = hashlib.sha256(f"{order.federation}\n{order.run}".encode()).hexdigest()
    return folder / FOLDER / f"{run}.safetensors"

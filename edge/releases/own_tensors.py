"""What a device trains and keeps for itself: which files of the device hold it, and when they take effect.

They are written beside an update and take their predecessor's place when the coordinator has accepted the report: an
order that is carried out again begins with the layers that it began with. Layers are what a run has every device keep;
tuned tensors are what a device has of the fine-tuning after the last round, where that helped.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol

ABILITY = "personal-layers-1"
"""What a device that keeps such layers says in its hello."""
FOLDER = "personal"


class OfRun(Protocol):
    """What belongs to a run: an order, or a release."""

    @property
    def federation(self) -> str: ...
    @property
    def run(self) -> str: ...


def kept_at(folder: Path, run: OfRun) -> Path:
    """Where a device whose state is in ``folder`` has its own layers for a run."""
    return folder / FOLDER / f"{_name_of(run)}.safetensors"


def tuned_at(folder: Path, run: OfRun) -> Path:
    """Where it has what it fine-tuned for itself after that run."""
    return folder / FOLDER / f"{_name_of(run)}.tuned.safetensors"


def _name_of(run: OfRun) -> str:
    return hashlib.sha256(f"{run.federation}\n{run.run}".encode()).hexdigest()

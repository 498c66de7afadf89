"""The run files in ``examples/``, and small data in the shapes that they read."""

from __future__ import annotations

from pathlib import Path

from coordinator.data.made import make

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(path for path in EXAMPLES.rglob("*.toml") if path.parent.name not in ("containers", "fleets"))
"""All but the one whose paths are inside an image, which tests/containers runs."""


def make_stand_ins(folder: Path, examples: int) -> Path:
    """``folder`` with ``examples`` examples of every dataset that a run file reads."""
    for name in ("cifar10", "mnist-writers", "movie-reviews"):
        make(name, folder, examples=examples)
    return folder

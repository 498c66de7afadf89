"""The cells of the parity table, and what they are measured with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

MODELS = ("mlp", "conv2", "resnet20", "resnet18", "vgg11", "depthwise", "vit", "vit+lora", "lstm")
"""``vit+lora``: the vision transformer under ``fedlora:8``."""
FORMS = ("full", "frozen", "fedhm:4")
"""Whole; stem and the first two thirds of the blocks frozen, to the nearest block; FedHM level 4."""
LORA = "fedlora:8"
STEPS = 5
BATCH = 32
CALM = 1e-5
"""Loss errors up to here are roundings; a flipped rectifier moves a loss by 1e-4 and more."""
PATIENCE = 3


@dataclasses.dataclass(frozen=True)
class Cell:
    """One line of the table."""

    model: str
    form: str
    runtime: str

    def matches(self, wanted: dict[str, str]) -> bool:
        return all(getattr(self, key) == value for key, value in wanted.items())


def cells() -> Iterator[Cell]:
    """All of them, cheap models first within a runtime. Graphs of another runtime's are measured there."""
    from edge.runtimes import RUNTIMES

    for runtime in RUNTIMES:
        for model in MODELS:
            for form in FORMS:
                yield Cell(model, form, runtime)


def blocks_to_freeze(model: str) -> tuple[int, int]:
    """Two thirds of the model's blocks, rounded, and how many it has."""
    from coordinator.models.catalog import build_model
    from coordinator.submodels.freeze import block_names

    count = len(block_names(build_model(model)))
    return round(2 * count / 3), count

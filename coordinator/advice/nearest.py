"""The recorded setting that is most like a run, and in what it is not: where the map is thin, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator

from coordinator.advice.recorded import AdviceMap, Features, Setting

FACTORS = {"examples": 2.0, "classes": 2.0, "parameters": 4.0, "devices": 3.0, "participants": 2.0, "steps": 2.0}
"""By how much a run may differ from a recorded setting before it is said; of these a distance of 1 each."""

SKEW = 0.2
"""The same for the skew, as a difference."""

OTHER_INPUT, OTHER_KIND = 1.5, 3.0
"""Distances of other inputs, and of a model of another kind: convolutions or none."""

FAR = 4.0
"""From this distance on a setting says little of a run."""

WORDS = {
    "examples": "examples on a device",
    "classes": "classes",
    "parameters": "parameters in the whole model",
    "devices": "devices",
    "participants": "devices in a round",
    "steps": "steps in a round",
}


def distance(here: Features, there: Features) -> float:
    """0 for equal features; each that differs as much as is said adds about 1."""
    total = sum(
        (math.log(getattr(here, key) / getattr(there, key)) / math.log(factor)) ** 2 for key, factor in FACTORS.items()
    )
    total += ((here.skew - there.skew) / SKEW) ** 2
    total += OTHER_INPUT**2 * (here.input != there.input)
    total += OTHER_KIND**2 * (here.convolutional != there.convolutional)
    return math.sqrt(total)


def nearest(found: AdviceMap, here: Features) -> Setting:
    """The setting at the least distance; of equal ones the first."""
    return min(found.settings, key=lambda setting: distance(here, setting.features))


def differences(here: Features, setting: Setting) -> Iterator[str]:
    """In what a run is far from the setting; nothing where the map is not thin."""
    there = setting.features
    for key, factor in FACTORS.items():
        mine, theirs = getattr(here, key), getattr(there, key)
        if abs(math.log(mine / theirs)) > math.log(factor) + 1e-9:
            yield f"{mine:,.0f} {WORDS[key]}, recorded with {theirs:,.0f}"
    if abs(here.skew - there.skew) > SKEW:
        yield f"devices' classes differ by {here.skew:.2f}, recorded with {there.skew:.2f}"
    if here.input != there.input:
        yield f"inputs of shape {list(here.input)}, recorded with {list(there.input)}"
    if here.convolutional != there.convolutional:
        kinds = {True: "a model with convolutions", False: "a model without convolutions"}
        yield f"{kinds[here.convolutional]}, recorded with {kinds[there.convolutional]}"
    if (seeds := setting.seeds()) < 3:
        yield f"recorded with {seeds} seed{'s' if seeds > 1 else ''}"

"""Figures by name: the scheme of TensorBoard, MLflow and Weights & Biases.

``round/NAME`` is a number of the round's line in ``metrics.jsonl``, ``round/PART/NAME`` one inside a part of it
(``round/evaluation/server/accuracy``); rounds of statistics and of scores are ``stats/...`` and ``eval/...``.
``round_device/ID/NAME`` is a number of a device's report. Units are at the end of a name, as in the file: ``_s``
seconds, ``_ms`` milliseconds, ``_bytes``, ``_c`` degrees Celsius, ``_percent``; ``bytes_up`` and ``bytes_down`` are
bytes. The step is the round, from 1. What is no finite number is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from edge.contracts.report import TrainReport

IDENTITY = frozenset({"round", "attempt", "program", "event", "at_s"})
"""Keys of a line that say which round it is."""

OF_A_REPORT = (
    "loss",
    "num_examples",
    "steps",
    "step_ms_p50",
    "step_ms_p95",
    "trainer_peak_bytes",
    "supervisor_peak_bytes",
    "budget_bytes",
    "bytes_up",
    "bytes_down",
    "wall_s",
    "cpu_s",
    "joules",
    "temperature_c",
    "battery_percent",
)
"""Fields of a report that are tracked; those that a device cannot read are left out."""

UNKNOWN_AT_ZERO = frozenset(
    {"step_ms_p50", "step_ms_p95", "trainer_peak_bytes", "supervisor_peak_bytes", "budget_bytes"}
)
"""Of these 0 means: not measured (as in simulations), or no limit."""


def round_figures(entry: Mapping[str, Any]) -> dict[str, float]:
    """Name -> number, of a line of ``metrics.jsonl``."""
    program = str(entry.get("program", "train"))
    prefix = "round" if program == "train" else program
    numbers = {key: value for key, value in entry.items() if key not in IDENTITY}
    return {f"{prefix}/{path}": number for path, number in _leaves(numbers)}


def device_figures(report: TrainReport) -> dict[str, float]:
    """Name -> number, of a report; without ``round_device/ID/`` before it."""
    found = {name: value for name in OF_A_REPORT if (value := getattr(report, name)) is not msgspec.UNSET}
    known = {name: value for name, value in found.items() if value or name not in UNKNOWN_AT_ZERO}
    return {name: float(value) for name, value in known.items() if value is not None and math.isfinite(value)}


def _leaves(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}/{path}", number) for path, number in _leaves(value))
        elif isinstance(value, bool | int | float) and math.isfinite(value):
            yield str(key), float(value)

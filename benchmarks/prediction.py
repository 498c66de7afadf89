"""Prediction against measurement: every artifact predicted from manifest and profile, fitted on other models.

    python -m benchmarks.prediction --export artifacts                       # needs torch; makes what the folder lacks
    python -m benchmarks.prediction --measure artifacts --out points.jsonl   # needs no torch; times want a quiet machine
    python -m benchmarks.prediction --report points.jsonl [--page PAGE.md]

A point is one (cut, runtime, batch) of :mod:`benchmarks.prediction_points`, its steps taken in a process of its own
(:mod:`edge.step_measurement`). For each point the models of memory and time are fitted on the runtime's points of all
other models; its own manifest then gives the prediction. Errors are shares of the measured value.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCHEMA = "apportion.prediction-point/1"
STEPS = 15


def measured_line(point: Any, folder: Path) -> dict[str, Any]:
    """What the manifest says and what a process of its own found."""
    from edge.artifact_folder import read_artifact_folder
    from edge.step_measurement import measure_steps

    manifest, _ = read_artifact_folder(folder)
    found = dataclasses.asdict(measure_steps(folder, steps=STEPS))
    kept = ("predicted_bytes", "idle_bytes", "peak_bytes", "step_ms_p50", "step_ms_p95", "steps", "ended")
    cost = {name: getattr(manifest.cost, name) for name in ("parameters", "trained_parameters", "macs", "live_bytes",
                                                            "state_bytes")}  # fmt: skip
    return {
        "schema": SCHEMA,
        **dataclasses.asdict(point),
        **{name: found[name] for name in kept},
        "cpu_share": found.get("cpu_share", 0.0),
        "load": round(os.getloadavg()[0], 2),
        "cost": cost,
    }


def measure(folder: Path, out: Path) -> int:
    """Measure every artifact in ``folder`` into lines of ``out``; how many processes did not end well."""
    from benchmarks.prediction_points import read_points

    started, failed = time.monotonic(), 0
    with out.open("w", encoding="utf-8") as file:
        for point, artifact in read_points(folder):
            line = measured_line(point, artifact)
            failed += bool(line["ended"])
            file.write(json.dumps(line) + "\n")
            file.flush()
            told = line["ended"] or f"{line['step_ms_p50']:.1f} ms, {line['peak_bytes'] / 2**20:.0f} MB"
            print(f"{time.monotonic() - started:6.1f} s  {point.folder}: {told}", file=sys.stderr)
    return failed

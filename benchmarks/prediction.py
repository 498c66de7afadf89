"""Prediction against measurement: every artifact predicted from manifest and profile, fitted on other models.

    python -m benchmarks.prediction --export artifacts                       # needs torch; makes what the folder lacks
    python -m benchmarks.prediction --measure artifacts --out points.jsonl   # no torch; times want a quiet machine
    python -m benchmarks.prediction --report points.jsonl [--page PAGE.md]

A point is one (cut, runtime, batch) of :mod:`benchmarks.prediction_points`, its steps taken in a process of its own
(:mod:`edge.measuring.step_measurement`). For each point the models of memory and time are fitted on the runtime's
points of all other models; its own manifest then gives the prediction. Errors are shares of the measured value.
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
STEPS = 20


def measured_line(point: Any, folder: Path) -> dict[str, Any]:
    """What the manifest says and what a process of its own found."""
    import msgspec

    from edge.measuring.step_measurement import measure_steps
    from edge.training.artifact_folder import read_artifact_folder

    manifest, _ = read_artifact_folder(folder)
    found = dataclasses.asdict(measure_steps(folder, steps=STEPS))
    kept = ("predicted_bytes", "idle_bytes", "peak_bytes", "step_ms_p50", "step_ms_p95", "steps", "ended")
    cost = {name: getattr(manifest.cost, name) for name in ("parameters", "trained_parameters", "macs", "live_bytes",
                                                            "state_bytes")}  # fmt: skip
    # Artifacts of before the manifest told its graph's size have it as the size of the step's file.
    step_files = {program.file for program in manifest.programs if program.name in ("accumulate", "train")}
    graph = sum(file.size for file in manifest.files if file.name in step_files)
    cost["graph_bytes"] = manifest.cost.graph_bytes or graph
    work = manifest.cost.step_work
    cost["step_work"] = None if work is None else msgspec.to_builtins(work)
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


def main(argv: Sequence[str] | None = None) -> int:
    """Do what is asked; 1 when an artifact was refused, a process ended early, or there is too little to fit."""
    parser = argparse.ArgumentParser(description="Prediction against measurement.")
    parser.add_argument("--export", type=Path, metavar="FOLDER")
    parser.add_argument("--measure", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path("points.jsonl"))
    parser.add_argument("--report", type=Path, metavar="LINES")
    parser.add_argument("--page", type=Path)
    arguments = parser.parse_args(argv)
    failed = 0
    if arguments.export:
        from benchmarks.prediction_points import export_points

        failed += export_points(arguments.export)
    if arguments.measure:
        failed += measure(arguments.measure, arguments.out)
    if arguments.report:
        from benchmarks.prediction_page import page, read_lines, summary
        from profiles.fit import FitImpossible

        try:
            lines = read_lines(arguments.report)
            found = summary(lines)
        except FitImpossible as error:
            print(f"{error}", file=sys.stderr)
            return 1
        if arguments.page:
            arguments.page.write_text(page(lines, found), encoding="utf-8")
        print(json.dumps({"schema": "apportion.prediction/1", "ok": True, **found}))
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())

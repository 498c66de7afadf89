"""Predicted against measured peaks, from lines that ``apportion bench step --json`` printed.

    apportion bench step --model resnet8 --batch 16 --blocks 3 --json >> steps.jsonl     # and others
    python -m benchmarks.memory_prediction steps.jsonl

Two predictions: the manifest's own, and a line per runtime fitted on all other models, at whatever batch. Memory does
not depend on how busy the machine is. Prints a table and one JSON line.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from profiles.fit import FitImpossible
from profiles.memory_check import PeakErrors, PeakPoint, held_out_errors, manifest_errors
from profiles.memory_fit import fit_memory_by_runtime

MB = 2**20


def read_points(paths: list[Path]) -> list[PeakPoint]:
    """A point for every line that is a finished bench; other lines are passed over."""
    found = []
    for path in paths:
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict) and line.get("ok") and line.get("schema") == "apportion.bench/1":
                found.append(_point(line))
    return found


def _point(line: dict[str, Any]) -> PeakPoint:
    idle, trainer, process = (line[name] for name in ("idle_rss_mb", "trainer_peak_mb", "process_peak_mb"))
    return PeakPoint(
        runtime=line["runtime"],
        shape=line["model"],
        idle_bytes=round((process - trainer + idle) * MB),
        predicted_bytes=round((line["predicted_peak_mb"] - idle) * MB),
        grown_bytes=round((trainer - idle) * MB),
    )


def _row(name: str, errors: PeakErrors) -> str:
    shares = (errors.total_median, errors.total_worst, errors.growth_median, errors.short_worst)
    return f"{name:22} {errors.points:6} " + " ".join(f"{100 * share:11.1f} %" for share in shares)


def main(arguments: list[str]) -> int:
    """Print the table; 1 when there is too little to say."""
    points = read_points([Path(argument) for argument in arguments])
    try:
        checks = {"manifest": manifest_errors(points), "fit on other models": held_out_errors(points)}
        fits = fit_memory_by_runtime(
            {
                runtime: [(p.predicted_bytes, p.grown_bytes) for p in points if p.runtime == runtime]
                for runtime in {point.runtime for point in points}
            }
        )
    except FitImpossible as error:
        print(f"{error}", file=sys.stderr)
        return 1
    print(f"{'prediction':22} {'points':>6} {'total':>13} {'worst total':>13} {'above idle':>13} {'too low by':>13}")
    for name, errors in checks.items():
        print(_row(name, errors))
    for runtime, fit in fits.items():
        print(
            f"{runtime}: {fit.scale:.3f} x predicted {fit.offset_bytes / MB:+.1f} MB, {fit.quality.left_out} left out, "
            f"{fit.missing_bytes / MB:.1f} MB more cover every point"
        )
    print(json.dumps({"schema": "apportion.memory-prediction/1", "ok": True}
                     | {name: dataclasses.asdict(errors) for name, errors in checks.items()}))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

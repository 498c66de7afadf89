"""Errors of predicted memory and step time, from measured lines of :mod:`benchmarks.prediction`, and their page.

Every point is predicted by models fitted on its runtime's other points: once on all other shapes, a shape being a model
with its cut and all its batches, and once on all other models.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from profiles.fit import FitImpossible
from profiles.latency import WorkSample, fit_work_time
from profiles.memory_fit import fit_memory
from profiles.step_work import StepWork

MB = 2**20
BUSY_SHARE = 0.9
"""Below this share of a processor the time counts that the process had one."""

LIMITS = {"total": 0.08, "above idle": 0.15, "worst total": 0.20, "step time": 0.15}
"""What is asked for; all but the worst are medians."""

Line = Mapping[str, Any]


def read_lines(path: Path) -> list[Line]:
    """Lines of processes that ended well."""
    lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines() if text.strip()]
    return [line for line in lines if not line["ended"]]


def shape_of(line: Line) -> tuple[Any, ...]:
    """Model and cut."""
    return line["model"], line["cut"], line["freeze"]


def model_of(line: Line) -> tuple[Any, ...]:
    """The model alone."""
    return (line["model"],)


def step_ms(line: Line) -> float:
    """The median step, or the processor time of one where others used the processor."""
    share = line["cpu_share"] or 1.0
    return float(line["step_ms_p50"]) * (1.0 if share >= BUSY_SHARE else share)


def predictions(lines: Sequence[Line], group: Callable[[Line], tuple[Any, ...]]) -> list[dict[str, float]]:
    """Of each line, from a fit of its runtime's lines of other groups: bytes above idle, and ms.

    Raises:
        FitImpossible: too few other groups on a runtime.
    """
    found = []
    for line in lines:
        others = [o for o in lines if o["runtime"] == line["runtime"] and group(o) != group(line)]
        try:
            memory = fit_memory([(o["predicted_bytes"], o["peak_bytes"] - o["idle_bytes"]) for o in others])
            times = fit_work_time([_work(o) for o in others])
        except FitImpossible as error:
            raise FitImpossible(f"{line['model']} on {line['runtime']}, from the others: {error}") from error
        work = _work(line)
        found.append(
            {
                "grown_bytes": memory.growth_bytes(line["predicted_bytes"]),
                "step_ms": times.step_ms(
                    macs=work.macs,
                    batch=work.batch,
                    live_bytes=work.moved_bytes,
                    parameters=work.parameters,
                    graph_bytes=work.graph_bytes,
                    work=work.work,
                ),
            }
        )
    return found


def _work(line: Line) -> WorkSample:
    cost = line["cost"]
    work = cost.get("step_work")
    return WorkSample(
        cost["macs"],
        line["batch"],
        cost["live_bytes"],
        step_ms(line),
        cost["parameters"],
        cost["graph_bytes"],
        None if work is None else StepWork(**work),
    )


def errors(line: Line, prediction: Mapping[str, float]) -> dict[str, float]:
    """Signed shares of what was measured."""
    grown = line["peak_bytes"] - line["idle_bytes"]
    return {
        "total": (line["idle_bytes"] + prediction["grown_bytes"]) / line["peak_bytes"] - 1.0,
        "above idle": prediction["grown_bytes"] / grown - 1.0,
        "step time": prediction["step_ms"] / step_ms(line) - 1.0,
    }


def summary(lines: Sequence[Line]) -> dict[str, Any]:
    """Medians and the worst total, over all points and by runtime, for both ways of holding out.

    Raises:
        FitImpossible: as :func:`predictions`.
    """
    found: dict[str, Any] = {"points": len(lines)}
    for name, group in (("other shapes", shape_of), ("other models", model_of)):
        each = [errors(line, p) for line, p in zip(lines, predictions(lines, group), strict=True)]
        by_runtime = {
            runtime: _errors([e for line, e in zip(lines, each, strict=True) if line["runtime"] == runtime])
            for runtime in sorted({line["runtime"] for line in lines})
        }
        found[name] = {"all": _errors(each), **by_runtime}
    found["busy points"] = sum(0 < line["cpu_share"] < BUSY_SHARE for line in lines)
    return found


def _errors(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    medians = {name: statistics.median(abs(e[name]) for e in each) for name in ("total", "above idle", "step time")}
    worst = max(abs(e["total"]) for e in each)
    return {"points": len(each), **medians, "worst total": worst}


def page(lines: Sequence[Line], found: Mapping[str, Any]) -> str:
    """The whole page, as Markdown."""
    busy = found["busy points"]
    clock = (
        "Step times are medians of 20 steps on one thread, with the processor to themselves."
        if not busy
        else f"Step times are medians of 20 steps on one thread; at {busy} points others used the processor, and the "
        "processor time of a step counts."
    )
    load = statistics.median(line["load"] for line in lines)
    held = {name: found["other shapes"]["all"][name] <= limit for name, limit in LIMITS.items()}
    told = "; ".join(f"{name} {'holds' if ok else '**does not hold**'}" for name, ok in held.items())
    out = [
        "# Predicted against measured: memory and step time of cuts on three runtimes",
        "",
        f"{len(lines)} points (cut, runtime, batch) of {len({model_of(line) for line in lines})} models. "
        f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, "
        f"{time.strftime('%Y-%m-%d')}, load {load:.1f}. MB of 2^20 bytes, peak RSS of the trainer process that "
        f"takes the steps and writes an update. {clock}",
        "",
        "    python -m benchmarks.prediction --export artifacts",
        "    python -m benchmarks.prediction --measure artifacts --out points.jsonl",
        "    python -m benchmarks.prediction --report points.jsonl --page PAGE.md",
        "",
        "Each point is predicted from its manifest and from lines fitted on its runtime's other points: on all other",
        "shapes (model and cut; all batches of a shape are held out together), and on all other models. Errors are",
        "shares of the measured value, medians but for the worst.",
        "",
        "| fitted on | runtime | points | total | worst total | above idle | step time |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ("other shapes", "other models"):
        for runtime, e in found[name].items():
            shown = " | ".join(f"{100 * e[key]:.1f} %" for key in ("total", "worst total", "above idle", "step time"))
            out.append(f"| {name} | {runtime} | {e['points']} | {shown} |")
    asked = ", ".join(f"{name} {100 * limit:.0f} %" for name, limit in LIMITS.items())
    out += ["", f"Asked for: {asked}. Fitted on other shapes: {told}.", ""]
    out += [
        "| model | cut | frozen | runtime | batch | idle MB | growth MB | predicted | total | step ms "
        "| predicted | error |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line, p in zip(lines, predictions(lines, shape_of), strict=True):
        e = errors(line, p)
        out.append(
            f"| {line['model']} | {line['cut'] or 'whole'} | {line['freeze'] or ''} | {line['runtime']} "
            f"| {line['batch']} | {line['idle_bytes'] / MB:.1f} | {(line['peak_bytes'] - line['idle_bytes']) / MB:.1f} "
            f"| {p['grown_bytes'] / MB:.1f} | {100 * e['total']:+.1f} % | {step_ms(line):.1f} | {p['step_ms']:.1f} "
            f"| {100 * e['step time']:+.0f} % |"
        )
    return "\n".join(out) + "\n"

"""What cuts save on a device: time and memory of their steps as shares of the whole model's.

    python -m benchmarks.cut_savings --model resnet18 --cuts prism:0.2 fedhm:8 heterofl:0.35
    python -m benchmarks.cut_savings --model resnet18 --slt 0.125

Each cut is exported and carried out as one order by a real agent, a process of its own; its report has the steps' time
and the trainer's peak. ``--slt S`` measures every step of successive layer training's schedule instead, beside the
network scaled in width to ratio S whose memory is the schedule's limit. Memory is a trainer's peak above an idle one.
For times beside torch there is ``apportion bench step``. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MB = 2**20

Row = Mapping[str, Any]


def measured(model: str, runtime: str, batch: int, cut: str) -> dict[str, Any]:
    """The report of an agent that trains ``cut``: MB and milliseconds."""
    from coordinator.cli.bench_device import exported_inputs, measure_agent
    from coordinator.cli.model_arguments import ModelArguments

    with tempfile.TemporaryDirectory(prefix="apportion-savings-") as name:
        folder = Path(name)
        inputs = exported_inputs(ModelArguments(model, (), 0, batch, 0, cut), runtime, folder)
        report, manifest = measure_agent(inputs, folder, 1).report, inputs.manifest
    values = {
        "step_ms": report.step_ms_p50,
        "trainer_peak_mb": report.trainer_peak_bytes / MB,
        "idle_rss_mb": report.trainer_idle_bytes / MB,
        "predicted_peak_mb": (report.trainer_idle_bytes + manifest.cost.predicted_peak_bytes) / MB,
        "parameters": manifest.cost.parameters,
    }
    print(f"{cut or 'whole'}: {values['step_ms']:.0f} ms, {values['trainer_peak_mb']:.0f} MB", file=sys.stderr)
    return values


def above_idle(values: Row, key: str = "trainer_peak_mb") -> float:
    """MB above the idle trainer."""
    return float(values[key]) - float(values["idle_rss_mb"])


def row(name: str, values: Row, whole: Row) -> dict[str, Any]:
    """A cut's figures and its shares of the whole model's."""
    return {
        "cut": name,
        "step_ms": values["step_ms"],
        "time_share": round(values["step_ms"] / whole["step_ms"], 3),
        "peak_mb": round(above_idle(values), 1),
        "predicted_mb": round(above_idle(values, "predicted_peak_mb"), 1),
        "memory_share": round(above_idle(values) / above_idle(whole), 3),
        "parameters": values["parameters"],
    }


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown; memory above the idle trainer."""
    lines = [
        "| cut | step ms | share | peak MB | predicted MB | share | parameters |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| `{r['cut']}` | {r['step_ms']:.0f} | {r['time_share']:.3f} | {r['peak_mb']:.0f} "
            f"| {r['predicted_mb']:.0f} | {r['memory_share']:.2f} | {r['parameters']:,} |"
        )
    return "\n".join(lines)


def schedule(model: str, ratio: float) -> list[tuple[str, str]]:
    """(label, cut) of every step of the schedule, the first being that of the whole network scaled."""
    from coordinator.methods.slt import SLT
    from coordinator.models.catalog import build_model

    method = SLT(build_model(model), {"levels": [ratio]})
    rounds = (0, *method.switches)
    return [(f"step {n}", f"slt:{ratio:g},round={start}") for n, start in enumerate(rounds)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, and end with one line of JSON."""
    parser = argparse.ArgumentParser(description="Time and memory of cuts as shares of the whole model's.")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--cuts", nargs="*", default=[])
    parser.add_argument("--slt", type=float, default=0.0)
    arguments = parser.parse_args(argv)

    def measure(cut: str) -> dict[str, Any]:
        return measured(arguments.model, arguments.runtime, arguments.batch, cut)

    cuts = [(cut, cut) for cut in arguments.cuts]
    if arguments.slt:
        limit = f"small_model:{arguments.slt:g}"
        cuts += [(f"limit, {limit}", limit), *schedule(arguments.model, arguments.slt)]
    whole = measure("")
    found = [(label, measure(cut)) for label, cut in cuts]
    rows = [row("whole", whole, whole), *(row(label, values, whole) for label, values in found)]
    print(table(rows))
    print(json.dumps({"model": arguments.model, "runtime": arguments.runtime, "batch": arguments.batch, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

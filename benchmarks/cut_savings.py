"""What cuts save on a device: time and memory of their steps as shares of the whole model's.

    python -m benchmarks.cut_savings --model resnet18 --cuts prism:0.2 fedhm:8 heterofl:0.35
    python -m benchmarks.cut_savings --model resnet18 --slt 0.125

Each cut is one ``apportion bench step`` in a process of its own; the whole model is measured before and after them and
its faster run counts. ``--slt S`` measures every step of successive layer training's schedule instead, beside the
network scaled in width to ratio S whose memory is the schedule's limit. Memory is a trainer's peak above an idle one.
The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def measured(model: str, runtime: str, batch: int, cut: str, blocks: int) -> dict[str, Any]:
    """One run of the bench; raises RuntimeError with its message where it fails."""
    command = [sys.executable, "-m", "edge", "bench", "step", "--model", model]
    command += ["--runtime", runtime, "--batch", str(batch), "--threads", "1", "--blocks", str(blocks), "--json"]
    result = subprocess.run(
        [*command, *(["--cut", cut] if cut else [])], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    values: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    if not values["ok"]:
        raise RuntimeError(f"{model} {cut or 'whole'} on {runtime}: {values['error']['message']}")
    print(f"{cut or 'whole'}: {values['step_ms']} ms, {values['trainer_peak_mb']} MB", file=sys.stderr)
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
        "ratio_to_torch": values["ratio_to_torch"],
        "parameters": values["parameters"],
    }


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown; memory above the idle trainer."""
    lines = [
        "| cut | step ms | share | peak MB | predicted MB | share | parameters | x torch |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        lines.append(
            f"| `{r['cut']}` | {r['step_ms']:.0f} | {r['time_share']:.3f} | {r['peak_mb']:.0f} "
            f"| {r['predicted_mb']:.0f} | {r['memory_share']:.2f} | {r['parameters']:,} | {r['ratio_to_torch']:.2f} |"
        )
    return "\n".join(lines)


def schedule(model: str, ratio: float) -> list[tuple[str, str]]:
    """(label, cut) of every step of the schedule, the first being that of the whole network scaled."""
    from coordinator.methods.slt import SLT
    from coordinator.models import build_model

    method = SLT(build_model(model), {"levels": [ratio]})
    rounds = (0, *method.switches)
    return [(f"step {n}", f"slt:{ratio:g},round={start}") for n, start in enumerate(rounds)]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, and end with one line of JSON."""
    parser = argparse.ArgumentParser(description="Time and memory of cuts as shares of the whole model's.")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--cuts", nargs="*", default=[])
    parser.add_argument("--slt", type=float, default=0.0)
    arguments = parser.parse_args(argv)

    def measure(cut: str) -> dict[str, Any]:
        return measured(arguments.model, arguments.runtime, arguments.batch, cut, arguments.blocks)

    cuts = [(cut, cut) for cut in arguments.cuts]
    if arguments.slt:
        limit = f"small_model:{arguments.slt:g}"
        cuts += [(f"limit, {limit}", limit), *schedule(arguments.model, arguments.slt)]
    first = measure("")
    found = [(label, measure(cut)) for label, cut in cuts]
    whole = min(first, measure(""), key=lambda values: float(values["step_ms"]))
    rows = [row("whole", whole, whole), *(row(label, values, whole) for label, values in found)]
    print(table(rows))
    print(json.dumps({"model": arguments.model, "runtime": arguments.runtime, "batch": arguments.batch, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

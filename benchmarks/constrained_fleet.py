"""Twelve devices with budgets from 96 to 512 MB that the kernel enforces: who trains, what each uses, who is killed.

    python -m benchmarks.constrained_fleet runs/fleet             # all four runs, one after the other
    python -m benchmarks.constrained_fleet runs/fleet --model resnet20 --method prism
    python -m benchmarks.constrained_fleet runs/fleet --only-page --page PAGE.md      # of what is there

Ten rounds of real agents on shards of CIFAR-10, two batches each: what is claimed is about memory, not accuracy. Every
device has a control group that limits both of its processes to its budget (``[[cohort.local]] ceiling = "budget"``).
Before each run the whole model is trained once by an agent without a budget, for its peak. Each run leaves
``<folder>/<model>-<method>.json``; the last line of stdout is one JSON object. Needs cifar10_jpeg.npz in
APPORTION_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.constrained_fleet_page import holds, page, table
from coordinator.data.datasets import Dataset
from coordinator.planning.planner import MB

BUDGETS_MB = (96, 112, 128, 160, 192, 224, 256, 288, 320, 384, 448, 512)
ROUNDS = 10
BATCHES = 2
TEST_IMAGES = 256
RUNTIME = "onnxruntime"


@dataclass(frozen=True)
class Run:
    """One of the four.

    Attributes:
        levels: of the method; close enough together that no budget falls into a gap.
        options: further ones of the method.
        has_forms: whether steps that do not fit may be recomputed; of a large model each costs another export.
    """

    model: str
    method: str
    batch: int
    levels: tuple[float, ...]
    options: str = ""
    has_forms: bool = True

    @property
    def name(self) -> str:
        """Of its folder and its file."""
        return f"{self.model}-{self.method}"


# Successive layers in ten rounds. By newly trained weights they reach the last steps soon, where whole layers use large
# budgets; in equal parts they pass the first ones, too, the only ones of ResNet-18 that 96 MB carry.
BY_PARAMETERS = f'rounds = {ROUNDS}\nschedule = "parameters"'
IN_EQUAL_PARTS = f'rounds = {ROUNDS}\nschedule = "equal"'
RUNS = (
    Run("resnet20", "prism", 32, (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)),
    Run("resnet20", "slt", 32, (1.0, 0.7, 0.5, 0.35, 0.25), BY_PARAMETERS),
    Run("resnet18", "prism", 8, (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1), has_forms=False),
    Run("resnet18", "slt", 8, (1.0, 0.8, 0.6, 0.35, 0.125), IN_EQUAL_PARTS, has_forms=False),
)


def images(path: Path | None = None, seed: int = 0, holdout: float = 0.0) -> Dataset:
    """The first CIFAR-10 images, as many as the devices' shards and a short test need.

    Raises:
        DataError: as :func:`coordinator.data.cifar10.load_cifar10`.
    """
    import numpy as np

    from coordinator.data.cifar10 import CLASSES, FILE, decoded, packed_arrays

    folder = os.environ.get("APPORTION_DATA", "")
    arrays = packed_arrays(path or (Path(folder) if folder else None))
    wanted = {"train": len(BUDGETS_MB) * BATCHES * max(run.batch for run in RUNS), "test": TEST_IMAGES}
    x = {s: decoded(arrays[f"jpeg_{s}"], arrays[f"offset_{s}"][: n + 1], where=FILE) for s, n in wanted.items()}
    y = {s: arrays[f"y_{s}"][:n].astype(np.int64) for s, n in wanted.items()}
    return Dataset(x["train"], y["train"], x["test"], y["test"], CLASSES)


def run_file(run: Run, *, cache: Path | None) -> str:
    """The run file of ``run``."""
    groups = "".join(f'[[cohort.local]]\ncount = 1\nbudget-mb = {mb}\nceiling = "budget"\n\n' for mb in BUDGETS_MB)
    return f"""
[federation]
name = "{run.name}"
seed = 1
rounds = {ROUNDS}

[model]
build = "{run.model}"

[method]
name = "{run.method}"
levels = {list(run.levels)}
norm = "batch"
{run.options}

[training]
steps = {BATCHES}
batch = {run.batch}
lr = 0.05
momentum = 0.9
weight-decay = 0.0005
{"frobenius-lambda = 0.0001" if run.method == "prism" else ""}

[data]
source = "benchmarks.constrained_fleet:images"
partition = "iid"
scale = 0.00392156862745098
mean = [0.4914, 0.4822, 0.4465]
std = [0.2470, 0.2435, 0.2616]

[evaluation]
batch = 128
every = 0
norm = "batch"

[cohort]
min-reports = 1
deadline-s = 600
join-timeout-s = 300

{groups}
[planner]
micro-batches = {str(run.has_forms).lower()}
recompute = {str(run.has_forms).lower()}
{f'export-cache = "{cache}"' if cache else ""}

[runtime]
name = "{RUNTIME}"
"""


def carried_out(run: Run, folder: Path, cache: Path | None) -> dict[str, Any]:
    """The rows of one run: per device its budget, what it trained, its peak, its share, its kills."""
    from coordinator.cli.assembly import RunOptions, resume_run, start_run
    from coordinator.run_file.loading import load_config_text

    run_dir = folder / run.name
    full = whole_model_peak(run)
    print(f"{run.name}: the whole model takes {full / MB:.0f} MB at batch {run.batch}", file=sys.stderr)
    if (run_dir / "ledger.sqlite").exists():
        summary = resume_run(run_dir, RunOptions())
    else:
        summary = start_run(load_config_text(run_file(run, cache=cache)), run_dir, RunOptions())
    rows = device_rows(run_dir, summary, full)
    return {
        "model": run.model,
        "method": run.method,
        "batch": run.batch,
        "levels": list(run.levels),
        "rounds": summary["committed_rounds"],
        "runtimes": summary["runtimes"],
        "full_peak_mb": round(full / MB, 1),
        "kills": summary["memory_kills"],
        "over_budget": summary["over_budget"],
        "ceiling": sorted({c["kind"] for c in summary["ceilings"].values()}),
        "accuracy": summary["accuracy"],
        "wall_s": summary["wall_s"],
        "exports": summary["exports"],
        "devices": rows,
    }


def whole_model_peak(run: Run) -> int:
    """Bytes both processes of an agent reach that trains the whole model without a budget."""
    from coordinator.cli.bench_device import exported_inputs, measure_agent
    from coordinator.cli.model_arguments import ModelArguments

    with tempfile.TemporaryDirectory(prefix="apportion-fleet-") as name:
        folder = Path(name)
        inputs = exported_inputs(ModelArguments(run.model, (), 0, run.batch), RUNTIME, folder)
        report = measure_agent(inputs, folder, 1).report
    return report.trainer_peak_bytes + report.supervisor_peak_bytes


def device_rows(run_dir: Path, summary: Mapping[str, Any], full: int) -> list[dict[str, Any]]:
    """A row per device, in the order of budgets; the peak is the largest over the rounds."""
    from coordinator.ledger.ledger import Ledger
    from edge.contracts.plan import read_order

    used: dict[str, list[tuple[int, str, int, str]]] = {}
    refused: dict[str, list[str]] = {}
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        for attempt in ledger.rounds.all():
            for update in ledger.updates.of_attempt(attempt.round, attempt.attempt):
                report, order = update.report, read_order(update.assignment.order)
                peak = report.trainer_peak_bytes + report.supervisor_peak_bytes
                used.setdefault(report.device, []).append(
                    (peak, update.assignment.level, order.peak_bytes, report.runtime)
                )
            for entry in ledger.assignments.of_attempt(
                attempt.round, attempt.attempt, "refused", "rejected", "expired"
            ):
                refused.setdefault(entry.device, []).append(f"round {attempt.round + 1}: {entry.code} {entry.reason}")
    rows = []
    for index, budget_mb in enumerate(BUDGETS_MB):
        device = f"device-{index:02d}"
        orders = used.get(device, [])
        peak, level, predicted, runtime = max(orders, default=(0, "", 0, ""))
        ceiling = summary["ceilings"].get(device, {})
        rows.append(
            {
                "device": device,
                "budget_mb": budget_mb,
                "runtime": runtime or RUNTIME,
                "rounds": len(orders),
                "levels": list(dict.fromkeys(level for _, level, _, _ in orders)),
                "level_at_peak": level,
                "predicted_mb": round(predicted / MB, 1),
                "peak_mb": round(peak / MB, 1),
                "share": round(peak / MB / budget_mb, 3),
                "bound": budget_mb * MB < full,
                "kernel_peak_mb": round(ceiling.get("peak_bytes", 0) / MB, 1),
                "kills": ceiling.get("kills"),
                "refusals": refused.get(device, []),
            }
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out what was asked, print tables on stdout, and end with one line of JSON; 1 when a claim does not hold."""
    parser = argparse.ArgumentParser(description="Devices under kernel-enforced budgets.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="")
    parser.add_argument("--method", default="")
    parser.add_argument("--cache", type=Path, default=None, help="folder of exports that runs share")
    parser.add_argument("--again", action="store_true", help="also what has a result already")
    parser.add_argument("--only-page", action="store_true", help="run nothing, print what is there")
    parser.add_argument("--page", type=Path, default=None, help="file to write the page to")
    arguments = parser.parse_args(argv)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    results, missing = [], []
    for run in RUNS:
        if arguments.model not in ("", run.model) or arguments.method not in ("", run.method):
            continue
        file = arguments.folder / f"{run.name}.json"
        if not arguments.only_page and (arguments.again or not file.exists()):
            if arguments.again:
                shutil.rmtree(arguments.folder / run.name, ignore_errors=True)
            file.write_text(json.dumps(carried_out(run, arguments.folder, arguments.cache), indent=1))
        if file.exists():
            results.append(json.loads(file.read_text()))
            print(table(results[-1]), end="\n\n")
        else:
            missing.append(f"{run.model} under {run.method}")
    if arguments.page:
        arguments.page.write_text(page(results, missing), encoding="utf-8")
    print(json.dumps({"schema": "apportion.constrained-fleet/1", "results": results}))
    return 0 if all(all(holds(result).values()) for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())

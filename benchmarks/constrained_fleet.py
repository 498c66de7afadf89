"""Twelve devices with small budgets that the kernel enforces: who trains, what each uses, who is killed.

    python -m benchmarks.constrained_fleet runs/fleet             # all runs, one after the other
    python -m benchmarks.constrained_fleet runs/fleet --model resnet20 --method prism
    python -m benchmarks.constrained_fleet runs/fleet --runtime executorch --model resnet20 --rounds 3
    python -m benchmarks.constrained_fleet runs/fleet --only-page --page PAGE.md      # of what is there

From 96 MB on ONNX Runtime, from 48 MB on ExecuTorch. Rounds of real agents on shards of CIFAR-10, two batches each:
what is claimed is about memory, not accuracy. Every device has a control group that limits both of its processes to its
budget (``[[cohort.local]] ceiling = "budget"``). Before each run the whole model is trained once by an agent without a
budget, for its peak. Each run leaves ``<folder>/<model>-<method>-<runtime>.json``; the last line of stdout is one JSON
object. Needs cifar10_jpeg.npz in APPORTION_DATA.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.constrained_fleet_page import holds, page, table
from coordinator.data.datasets import Dataset
from coordinator.ledger.records import Assignment
from coordinator.planning.planner import MB
from edge.contracts.report import TrainReport
from edge.runtimes.environments import runtime_python
from profiles.processor import processor
from profiles.system_files import SystemFiles

BUDGETS_MB = {
    "onnxruntime": (96, 112, 128, 160, 192, 224, 256, 288, 320, 384, 448, 512),
    "executorch": (48, 52, 56, 60, 64, 64, 64, 72, 96, 128, 256, 512),
}
"""Of the twelve devices, by the runtime of all of them."""
ROUNDS = 10
BATCHES = 2
TEST_IMAGES = 256
RUNTIME = next(iter(BUDGETS_MB))


@dataclass(frozen=True)
class Run:
    """One of them.

    Attributes:
        levels: of the method; close enough together that no budget falls into a gap.
        options: further ones of the method; ``{rounds}`` in them are those of the run.
        has_forms: whether steps that do not fit may be recomputed; of a large model each costs another export.
    """

    model: str
    method: str
    batch: int
    levels: tuple[float, ...]
    options: str = ""
    has_forms: bool = True


@dataclass(frozen=True)
class Fleet:
    """On what the devices of a run train, and how often."""

    runtime: str = RUNTIME
    rounds: int = ROUNDS

    @property
    def budgets_mb(self) -> tuple[int, ...]:
        """Of its devices."""
        return BUDGETS_MB[self.runtime]

    def name(self, run: Run) -> str:
        """Of the folder and the file of ``run``."""
        return f"{run.model}-{run.method}-{self.runtime}"


# Successive layers in ten rounds. By newly trained weights they reach the last steps soon, where whole layers use large
# budgets; in equal parts they pass the first ones, too, the only ones of ResNet-18 that 96 MB carry.
BY_PARAMETERS = 'rounds = {rounds}\nschedule = "parameters"'
IN_EQUAL_PARTS = 'rounds = {rounds}\nschedule = "equal"'
RUNS = (
    Run("resnet20", "prism", 32, (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)),
    Run("resnet20", "heterofl", 32, (1.0, 0.75, 0.5, 0.25)),
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
    wanted = {
        "train": max(map(len, BUDGETS_MB.values())) * BATCHES * max(run.batch for run in RUNS),
        "test": TEST_IMAGES,
    }
    x = {s: decoded(arrays[f"jpeg_{s}"], arrays[f"offset_{s}"][: n + 1], where=FILE) for s, n in wanted.items()}
    y = {s: arrays[f"y_{s}"][:n].astype(np.int64) for s, n in wanted.items()}
    return Dataset(x["train"], y["train"], x["test"], y["test"], CLASSES)


def run_file(run: Run, fleet: Fleet, *, cache: Path | None) -> str:
    """The run file of ``run`` by ``fleet``."""
    group = '[[cohort.local]]\ncount = 1\nbudget-mb = {mb}\nceiling = "budget"\n\n'
    groups = "".join(group.format(mb=mb) for mb in fleet.budgets_mb)
    return f"""
[federation]
name = "{fleet.name(run)}"
seed = 1
rounds = {fleet.rounds}

[model]
build = "{run.model}"

[method]
name = "{run.method}"
levels = {list(run.levels)}
norm = "batch"
{run.options.format(rounds=fleet.rounds)}

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
name = "{fleet.runtime}"
"""


def carried_out(run: Run, fleet: Fleet, folder: Path, cache: Path | None) -> dict[str, Any]:
    """The rows of one run: per device its budget, what it trained, its peak, its share, its kills."""
    from coordinator.cli.assembly import resume_run, start_run
    from coordinator.cli.open_run import RunOptions
    from coordinator.run_file.loading import load_config_text

    run_dir = folder / fleet.name(run)
    full = whole_model_peak(run, fleet)
    print(f"{run_dir.name}: the whole model takes {full / MB:.0f} MB at batch {run.batch}", file=sys.stderr)
    if (run_dir / "ledger.sqlite").exists():
        summary = resume_run(run_dir, RunOptions())
    else:
        summary = start_run(load_config_text(run_file(run, fleet, cache=cache)), run_dir, RunOptions())
    rows = device_rows(run_dir, fleet, summary, full)
    return {
        "host": host(fleet),
        "model": run.model,
        "method": run.method,
        "batch": run.batch,
        "levels": list(run.levels),
        "rounds": summary["committed_rounds"],
        "runtimes": summary["runtimes"],
        "full_peak_mb": mb(full),
        "kills": summary["memory_kills"],
        "over_budget": summary["over_budget"],
        "ceiling": sorted({c["kind"] for c in summary["ceilings"].values()}),
        "accuracy": summary["accuracy"],
        "wall_s": summary["wall_s"],
        "exports": summary["exports"],
        "devices": rows,
    }


def host(fleet: Fleet) -> dict[str, str]:
    """Where and on what it was measured, and when."""
    files = SystemFiles(Path("/"))
    model = files.fields("/proc/cpuinfo", ":").get("model", "")
    python = runtime_python(fleet.runtime)
    command = f"from importlib.metadata import version; print(version({fleet.runtime!r}))"
    told = subprocess.run([str(python), "-c", command], capture_output=True, text=True, check=True)
    return {
        "processor": str(processor(files)["cpu_model"].value) + (f", model {model}" if model else ""),
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "runtime": f"{fleet.runtime} {told.stdout.strip()}",
        "date": str(datetime.date.today()),
    }


def whole_model_peak(run: Run, fleet: Fleet) -> int:
    """Bytes both processes of an agent reach that trains the whole model without a budget."""
    from coordinator.cli.bench_device import exported_inputs, measure_agent
    from coordinator.cli.model_arguments import ModelArguments

    with tempfile.TemporaryDirectory(prefix="apportion-fleet-") as name:
        folder = Path(name)
        inputs = exported_inputs(ModelArguments(run.model, (), 0, run.batch), fleet.runtime, folder)
        report = measure_agent(inputs, folder, 1).report
    return report.trainer_peak_bytes + report.supervisor_peak_bytes


def device_rows(run_dir: Path, fleet: Fleet, summary: Mapping[str, Any], full: int) -> list[dict[str, Any]]:
    """A row per device, in the order of budgets; the peak is the largest over the rounds.

    A device is bound where the whole model, in the plain form of its step, takes more than its budget.
    """
    from coordinator.ledger.ledger import Ledger
    from edge.contracts.plan import read_order

    used: dict[str, list[Used]] = {}
    refused: dict[str, list[str]] = {}
    with Ledger.open(run_dir / "ledger.sqlite") as ledger:
        for attempt in ledger.rounds.all():
            for update in ledger.updates.of_attempt(attempt.round, attempt.attempt):
                report, order = update.report, read_order(update.assignment.order)
                used.setdefault(report.device, []).append(Used(report, update.assignment, order.peak_bytes))
            for entry in ledger.assignments.of_attempt(
                attempt.round, attempt.attempt, "refused", "rejected", "expired"
            ):
                refused.setdefault(entry.device, []).append(f"round {attempt.round + 1}: {entry.code} {entry.reason}")
    rows = []
    for index, budget_mb in enumerate(fleet.budgets_mb):
        device = f"device-{index:02d}"
        orders = used.get(device, [])
        most = max(orders, key=lambda order: order.peak_bytes, default=None)
        ceiling = summary["ceilings"].get(device, {})
        rows.append(
            {
                "device": device,
                "budget_mb": budget_mb,
                "runtime": most.report.runtime if most else fleet.runtime,
                "trainers": sorted({order.report.trainer_kind for order in orders}),
                "rounds": len(orders),
                "levels": list(dict.fromkeys(order.assignment.level for order in orders)),
                "level_at_peak": most.assignment.level if most else "",
                "form_at_peak": most.assignment.form if most else "",
                "predicted_mb": mb(most.predicted_bytes if most else 0),
                "peak_mb": mb(most.peak_bytes if most else 0),
                "trainer_mb": mb(most.report.trainer_peak_bytes if most else 0),
                "supervisor_mb": mb(most.report.supervisor_peak_bytes if most else 0),
                "share": round(most.peak_bytes / MB / budget_mb, 3) if most else 0.0,
                "bound": budget_mb * MB < full,
                "kernel_peak_mb": mb(ceiling.get("peak_bytes", 0)),
                "kills": ceiling.get("kills"),
                "refusals": refused.get(device, []),
            }
        )
    return rows


@dataclass(frozen=True)
class Used:
    """An update's report and assignment, and what its order said that both processes would reach."""

    report: TrainReport
    assignment: Assignment
    predicted_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Of both processes."""
        return self.report.trainer_peak_bytes + self.report.supervisor_peak_bytes


def mb(size: int) -> float:
    """Of 2^20 bytes, to a tenth."""
    return round(size / MB, 1)


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out what was asked, print tables on stdout, and end with one line of JSON; 1 when a claim does not hold."""
    parser = argparse.ArgumentParser(description="Devices under kernel-enforced budgets.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runtime", choices=BUDGETS_MB, default=RUNTIME)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--model", default="")
    parser.add_argument("--method", default="")
    parser.add_argument("--cache", type=Path, default=None, help="folder of exports that runs share")
    parser.add_argument("--again", action="store_true", help="also what has a result already")
    parser.add_argument("--only-page", action="store_true", help="run nothing, print what is there")
    parser.add_argument("--page", type=Path, default=None, help="file to write the page to")
    arguments = parser.parse_args(argv)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    fleet = Fleet(arguments.runtime, arguments.rounds)
    results, missing = [], []
    for run in RUNS:
        if arguments.model not in ("", run.model) or arguments.method not in ("", run.method):
            continue
        file = arguments.folder / f"{fleet.name(run)}.json"
        if not arguments.only_page and (arguments.again or not file.exists()):
            if arguments.again:
                shutil.rmtree(arguments.folder / fleet.name(run), ignore_errors=True)
            file.write_text(json.dumps(carried_out(run, fleet, arguments.folder, arguments.cache), indent=1))
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

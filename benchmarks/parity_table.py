"""Every model on every runtime, whole, with its first two thirds frozen and factorized, beside torch in float64.

    python -m benchmarks.parity_table docs/measurements/2026-11-20-parity
    python -m benchmarks.parity_table docs/measurements/2026-11-20-parity --only model=vit,runtime=executorch --again
    python -m benchmarks.parity_table docs/measurements/2026-11-20-parity --page docs/measurements/2026-11-20-parity.md

The first measures the cells that have no row yet, the second some of them anew, the third writes the page.
A cell is an export with its parity gate, in a process of its own, and five steps of the artifact in the runtime's own
session from the values that torch starts from. Rows go to ``cells.jsonl`` in the folder as they come; the last row of a
cell counts. A cell that is refused keeps the exporter's reason. Numbers of one cell take one core, ~10 to 200 s.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.parity_cells import BATCH, CALM, LORA, PATIENCE, STEPS, Cell, blocks_to_freeze, cells
from benchmarks.parity_page import page

if TYPE_CHECKING:
    from coordinator.cli.model_arguments import Prepared

TIMEOUT_S = 1800
ROWS = "cells.jsonl"


def prepare(cell: Cell) -> Prepared:
    """The cell's module and step.

    FedHM's level of ``vit+lora`` factorizes the layers that have no additive factors, and trains them: a layer has one
    factorization. Runtimes with AdamW alone get AdamW, all others SGD with momentum and weight decay.
    """
    from coordinator.cli.model_arguments import ModelArguments, parse_cut
    from coordinator.submodels.build import apply_cut
    from coordinator.submodels.record import cut_to_json
    from export.training_step import FactorPair, Optimizer

    has_lora = cell.model.endswith("+lora")
    model = cell.model.removesuffix("+lora")
    freeze = blocks_to_freeze(model)[0] if cell.form == "frozen" else 0
    cut = LORA if has_lora else cell.form if cell.form.startswith("fedhm") else ""
    prepared = ModelArguments(model, (), 0, BATCH, freeze, cut).prepare()
    if has_lora and cell.form.startswith("fedhm"):
        other, _ = parse_cut(prepared.dense, cell.form)
        free = {path: entry for path, entry in other.items() if not prepared.cut[path].factor}
        both = {**prepared.cut, **free}
        module = apply_cut(prepared.dense, both)
        step = struct_with(
            prepared.step,
            frozen=tuple(name for name, p in module.named_parameters() if not p.requires_grad),
            frobenius=tuple(FactorPair(u=f"{path}.u", v=f"{path}.v") for path in sorted(free)),
        )
        build = {**prepared.build, "cut": cut_to_json(both)}
        prepared = dataclasses.replace(prepared, cut=both, module=module, step=step, build=build)
    if cell.runtime == "onnxruntime_training":
        step = struct_with(prepared.step, optimizer=Optimizer(kind="adamw"))
        prepared = dataclasses.replace(prepared, step=step)
    return prepared


def struct_with(struct: Any, **changes: Any) -> Any:
    """A copy of a msgspec struct with some fields changed."""
    import msgspec

    return msgspec.structs.replace(struct, **changes)


def measure(cell: Cell) -> dict[str, Any]:
    """The row of a cell that exports, or the reason it does not."""
    from edge.contracts.errors import ApportionError
    from export.bundle import export_artifact

    row: dict[str, Any] = dataclasses.asdict(cell)
    started = time.monotonic()
    try:
        prepared = prepare(cell)
        row["optimizer"] = prepared.step.optimizer.kind
        row["trained"] = sum(
            p.numel() for n, p in prepared.module.named_parameters() if n not in set(prepared.step.frozen)
        )
        row["parameters"] = sum(p.numel() for p in prepared.module.parameters())
        with tempfile.TemporaryDirectory(prefix="apportion-parity-") as folder:
            artifact = Path(folder) / "artifact"
            manifest = export_artifact(
                prepared.module, prepared.step, artifact, build=prepared.build, runtime=cell.runtime
            )
            row["export_s"] = round(time.monotonic() - started, 1)
            parity = manifest.parity
            row |= {
                "outcome": "exported",
                "max_grad_rel_err": parity.max_grad_rel_err,
                "torch_fp32_rel_err": parity.torch_fp32_rel_err,
                "tolerance": parity.tolerance,
                "gate_steps": parity.steps,
            }
            row |= losses_beside_torch(prepared, manifest.tensors, artifact, cell.runtime)
    except ApportionError as error:
        row |= {"outcome": "refused" if "max_grad_rel_err" not in row else "failed", "reason": str(error)}
        row["error"] = type(error).__name__
    return row


def losses_beside_torch(prepared: Prepared, tensors: Any, artifact: Path, runtime: str) -> dict[str, Any]:
    """Losses of five steps of the artifact in its runtime, of torch in float64 and in float32, from the same values.

    The worst differences are relative to the largest loss, as the gate compares them. One rectifier whose input is so
    close to 0 that two roundings disagree on its sign changes every later step, in torch as in a runtime. So values on
    which torch float32 itself leaves float64 are passed over while there are others, and the closest of up to three
    sets of values counts; ``loss_sets`` says how many were needed.
    """
    from export.agreement import SEEDS
    from export.parity import one_thread

    best, tried = None, 0
    for seed in SEEDS:
        with one_thread():
            values, exact, single = _torch_losses(prepared, tensors, seed)
        own = _loss_error(single, exact)
        if own > CALM and seed != SEEDS[-1]:
            continue
        tried += 1
        answer = _artifact_losses(artifact, values, runtime)
        if "losses" not in answer:
            return answer
        error = _loss_error(answer["losses"], exact)
        if best is None or error < best["loss_rel_err"]:
            best = answer | {"losses_float64": exact, "losses_float32": single, "loss_rel_err": error}
            best["torch_fp32_loss_rel_err"] = own
        if error <= CALM or tried == PATIENCE:
            break
    assert best is not None
    return best | {"loss_sets": tried}


def _torch_losses(prepared: Prepared, tensors: Any, seed: int) -> tuple[dict[str, Any], list[float], list[float]]:
    import torch

    from export.gate_values import gate_values
    from export.reference import ReferenceStep

    values = gate_values(prepared.step, tensors, seed=seed)
    both = [ReferenceStep(prepared.module, prepared.step, values, d) for d in (torch.float64, torch.float32)]
    exact, single = (step.run(STEPS).losses for step in both)
    return values, exact, single


def _artifact_losses(artifact: Path, values: dict[str, Any], runtime: str) -> dict[str, Any]:
    from edge.contracts.tensor_file import encode_tensors
    from edge.runtimes.environments import runtime_python

    path = artifact.parent / "values.safetensors"
    path.write_bytes(encode_tensors(values))
    command = [runtime_python(runtime), "-m", "benchmarks.artifact_losses", artifact, path, "--steps", str(STEPS)]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        return {"outcome": "failed", "reason": f"the artifact does not run: {reason}"}
    answer = json.loads(done.stdout.splitlines()[-1])
    return {"runtime_version": answer["version"], "losses": answer["losses"]}


def _loss_error(losses: list[float], exact: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(losses, exact, strict=True)) / max(abs(loss) for loss in exact)


def read_rows(folder: Path) -> dict[Cell, dict[str, Any]]:
    """The last row of every cell measured so far."""
    rows: dict[Cell, dict[str, Any]] = {}
    path = folder / ROWS
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        rows[Cell(row["model"], row["form"], row["runtime"])] = row
    return rows


def run_apart(cell: Cell) -> dict[str, Any]:
    """The cell's row from a process of its own: a crash of native code or an endless export is a row too."""
    command = [sys.executable, "-m", "benchmarks.parity_table", "--cell", json.dumps(dataclasses.asdict(cell))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {**dataclasses.asdict(cell), "outcome": "failed", "reason": f"no result after {TIMEOUT_S} s"}
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [""])[-1]
        failed = f"the process ended with status {done.returncode}: {reason}"
        return {**dataclasses.asdict(cell), "outcome": "failed", "reason": failed}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure what is asked for, row by row, then write the page if one is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where cells.jsonl is")
    parser.add_argument("--only", default="", help="model=M,form=F,runtime=R, any of them")
    parser.add_argument("--again", action="store_true", help="measure cells that have a row, too")
    parser.add_argument("--page", type=Path, help="write the table as Markdown")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.cell:
        print(json.dumps(measure(Cell(**json.loads(chosen.cell)))))
        return
    if chosen.folder is None:
        parser.error("name a folder for the rows")
    wanted = dict(part.split("=", 1) for part in chosen.only.split(",") if part)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    known = read_rows(chosen.folder)
    for cell in cells():
        if (chosen.page and not wanted) or not cell.matches(wanted) or (cell in known and not chosen.again):
            continue
        row = run_apart(cell)
        row["measured"], row["load"] = time.strftime("%Y-%m-%d %H:%M"), round(os.getloadavg()[0], 1)
        with (chosen.folder / ROWS).open("a") as file:
            file.write(json.dumps(row) + "\n")
        figures = f"{row['max_grad_rel_err']:.1e}" if "max_grad_rel_err" in row else row.get("reason", "")
        print(f"{cell.model} {cell.form} {cell.runtime}: {row['outcome']} {figures}", file=sys.stderr, flush=True)
    if chosen.page:
        chosen.page.write_text(page(read_rows(chosen.folder), list(cells()), str(chosen.folder)))


if __name__ == "__main__":
    main()

"""The papers' claims at a size at which they could hold; :mod:`benchmarks.orderings` runs their first minutes.

    python -m benchmarks.claims runs/claims --jobs 2         # the grid, so many runs at once; goes on where it stopped
    python -m benchmarks.claims runs/claims --page           # the page of what is there, on stdout

The run files are ``examples/claims/*.toml``. What is compared was written down, in :data:`CLAIMS`, before anything was
run. Each run is one process on one thread, and leaves ``<folder>/<comparison>-<method>-<seed>.json``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.comparisons import SEEDS, Comparison, Entry
from benchmarks.orderings import configuration, grid, measure, read_results, result_path
from benchmarks.orderings_page import page

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "claims"

_LEVEL = {"levels": [0.2], "norm": "batch"}
_CODE = {**_LEVEL, "kappa": 4.0, "row-ratio": 0.4, "input-cut": False}
_STEPS = (0.062, 0.062, 0.062, 0.078, 0.078, 0.093, 0.093, 0.187, 0.187, 0.343, 0.343, 0.484, 0.531, 0.781, 0.859, 1.0)
_EIGHTH = {"levels": [0.125], "norm": "batch"}

CLAIMS = (
    Comparison(
        "low-rank",
        "PriSM > OrthDrop > OrigDrop at 0.2, classes by Dirichlet 0.1 (CIFAR-10)",
        (
            Entry("prism", "low_rank_dirichlet_cifar10"),
            Entry(
                "prism, all rows",
                "low_rank_dirichlet_cifar10",
                method="prism",
                options={**_LEVEL, "kappa": 4.0, "rows": "all"},
            ),
            Entry("orthdrop", "low_rank_dirichlet_cifar10", method="orthdrop", options=_LEVEL),
            Entry("origdrop", "low_rank_dirichlet_cifar10", method="origdrop", options=_LEVEL),
        ),
        (("prism", "orthdrop"), ("prism, all rows", "orthdrop"), ("orthdrop", "origdrop"), ("prism", "origdrop")),
    ),
    Comparison(
        "sampling",
        "PriSM's sampling: power > softmax >> uniform at 0.2, classes by Dirichlet 0.1 (CIFAR-10)",
        (
            Entry("power", "low_rank_dirichlet_cifar10"),
            Entry(
                "softmax",
                "low_rank_dirichlet_cifar10",
                method="prism",
                options={**_CODE, "sampling": "softmax"},
            ),
            Entry(
                "uniform",
                "low_rank_dirichlet_cifar10",
                method="prism",
                options={**_CODE, "sampling": "uniform"},
            ),
        ),
        (("power", "softmax"), ("softmax", "uniform"), ("power", "uniform")),
    ),
    Comparison(
        "femnist-like",
        "PriSM at 0.2 within 1 % of the whole model, on the code's network (MNIST by writer)",
        (
            Entry("prism", "femnist_like"),
            Entry("orthdrop", "femnist_like", method="orthdrop", options={"levels": [0.2]}),
            Entry("fedavg", "femnist_like", method="fedavg", options={}),
        ),
        (("prism", "orthdrop"), ("fedavg", "prism")),
    ),
    Comparison(
        "pruning",
        "PruneFL reaches 80 % in less than a third of FedAvg's simulated time (MNIST by writer, ten devices)",
        (
            Entry("prunefl", "pruning_mnist_writers"),
            Entry("fedavg", "pruning_mnist_writers", method="fedavg", options={"loss": "bce_one_hot"}),
            Entry(
                "prunefl, one stage",
                "pruning_mnist_writers",
                method="prunefl",
                options={"interval": 50, "initial-rounds": 0, "time-model": "pi4-conv2", "loss": "bce_one_hot"},
            ),
        ),
        (("prunefl", "fedavg"),),
        is_timed=True,
        share=1 / 3,
    ),
    Comparison(
        "layers",
        "SLT > a network of an eighth of the width, and its schedule > equal steps, early stopping (CIFAR-10)",
        (
            Entry("slt", "slt_cifar10", model="step"),
            Entry("small_model", "slt_cifar10", method="small_model", options=_EIGHTH),
            Entry(
                "slt, equal",
                "slt_cifar10",
                model="step",
                method="slt",
                options={**_EIGHTH, "rounds": 2500, "steps": list(_STEPS), "schedule": "equal"},
            ),
            Entry("slt, early stopping", "slt_early_stopping_cifar10", model="step"),
            Entry("slt, crops", "slt_crops_cifar10", model="step"),
            Entry("small_model, crops", "slt_crops_cifar10", method="small_model", options=_EIGHTH),
        ),
        (
            ("slt", "small_model"),
            ("slt", "slt, equal"),
            ("slt", "slt, early stopping"),
            ("slt, crops", "small_model, crops"),
        ),
    ),
)


Job = tuple[Path, str, str, int, str]
"""Folder, comparison, label, seed, and where torch computes."""


def run_one(job: Job) -> str:
    """Run one entry of the grid in this process; a line of what came of it."""
    import torch

    folder, name, label, seed, device = job
    torch.set_num_threads(1)
    comparison = next(c for c in CLAIMS if c.name == name)
    entry = next(e for e in comparison.entries if e.label == label)
    path = result_path(folder, comparison, entry, seed)
    result = measure(configuration(entry, seed, EXAMPLES), folder / path.stem, workers=1, device=device)
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(result, indent=1), encoding="utf-8")
    os.replace(temporary, path)
    accuracy = result["rounds"][-1]["evaluation"][entry.model]["accuracy"]
    return f"{path.stem}: {accuracy:.4f} after {result['wall_s']:.0f} s"


def jobs(folder: Path, comparisons: Sequence[Comparison], seeds: Sequence[int], device: str) -> list[Job]:
    """What is not there yet, every method with a seed before the next seed."""
    return [
        (folder, comparison.name, entry.label, seed, device)
        for comparison, entry, seed in grid(comparisons, seeds)
        if not result_path(folder, comparison, entry, seed).exists()
    ]


def main() -> None:
    """Run the grid, or print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", choices=[c.name for c in CLAIMS], help="these comparisons")
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, a process each")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--page", action="store_true", help="the page of what is there, on stdout")
    chosen = parser.parse_args()
    if chosen.page:
        print(page(CLAIMS, read_results(chosen.folder, CLAIMS)), end="")
        return
    wanted = [c for c in CLAIMS if not chosen.only or c.name in chosen.only]
    waiting = jobs(chosen.folder, wanted, chosen.seeds, chosen.device)
    with multiprocessing.get_context("spawn").Pool(chosen.jobs, maxtasksperchild=1) as pool:
        for line in pool.imap_unordered(run_one, waiting, chunksize=1):
            print(line, flush=True)


if __name__ == "__main__":
    main()

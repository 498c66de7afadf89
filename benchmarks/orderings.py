"""Do the papers' orderings hold? Every method of four comparisons, three seeds each, one simulation after the other.

    python -m benchmarks.orderings runs/orderings                  # the grid; goes on where it was stopped
    python -m benchmarks.orderings runs/orderings --page           # the page of what is there, on stdout

The comparisons' run files are ``examples/orderings/*.toml``; a method of a comparison differs in its ``[method]``
alone, or has its own file where its levels have other names. All runs with a seed come before the next seed, so that a
grid that is stopped early has every method. Each run leaves ``<folder>/<comparison>-<method>-<seed>.json``. What is
compared was written down, in :data:`COMPARISONS`, before anything was run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.comparisons import SEEDS, Comparison, Entry
from benchmarks.orderings_page import page
from coordinator.cli.simulate import begin
from coordinator.config.run_config import RunConfig
from coordinator.rounds.global_model import write_atomically
from coordinator.run_file.loading import load_config
from coordinator.simulation.assembly import SimulationOptions, simulate
from coordinator.simulation.record import Record

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "orderings"

_QUARTER = {"levels": [0.25], "norm": "batch"}
_FIFTH = {"levels": [0.2], "norm": "batch"}

COMPARISONS = (
    Comparison(
        "memory",
        "SLT > small model > FedRolex, Federated Dropout at 0.25 (CIFAR-10)",
        (
            Entry("slt", "memory_cifar10", model="step"),
            Entry("small_model", "memory_cifar10", method="small_model", options=_QUARTER),
            Entry("fedrolex", "memory_cifar10", method="fedrolex", options={**_QUARTER, "rounding": "floor"}),
            Entry("federated_dropout", "memory_cifar10", method="federated_dropout", options=_QUARTER),
        ),
        (
            ("slt", "small_model"),
            ("small_model", "fedrolex"),
            ("small_model", "federated_dropout"),
        ),
    ),
    Comparison(
        "low-rank",
        "PriSM > OrthDrop > OrigDrop at 0.2 (CIFAR-10)",
        (
            Entry("prism", "low_rank_cifar10"),
            Entry(
                "prism, all rows", "low_rank_cifar10", method="prism", options={**_FIFTH, "kappa": 4.0, "rows": "all"}
            ),
            Entry("orthdrop", "low_rank_cifar10", method="orthdrop", options=_FIFTH),
            Entry("origdrop", "low_rank_cifar10", method="origdrop", options=_FIFTH),
        ),
        (("prism", "orthdrop"), ("orthdrop", "origdrop"), ("prism", "origdrop"), ("prism, all rows", "orthdrop")),
    ),
    Comparison(
        "levels",
        "FedHM > HeteroFL at the smallest level (CIFAR-10)",
        (
            Entry("fedhm", "levels_fedhm_cifar10", model="rank 1/8"),
            Entry("heterofl", "levels_heterofl_cifar10", model="width 0.35"),
        ),
        (("fedhm", "heterofl"),),
    ),
    Comparison(
        "pruning",
        "PruneFL reaches the target accuracy in at most half of FedAvg's simulated time (MNIST by writer)",
        (
            # About half of the simulated seconds of FedAvg's 36 rounds; first run with as many, which were too few.
            Entry("prunefl", "pruning_mnist_writers", rounds=60),
            Entry("fedavg", "pruning_mnist_writers", method="fedavg", options={"loss": "bce_one_hot"}),
        ),
        (("prunefl", "fedavg"),),
        is_timed=True,
    ),
)


def configuration(entry: Entry, seed: int, examples: Path = EXAMPLES) -> RunConfig:
    """The run of a method: its file with the method, rounds and seed replaced."""
    config = load_config(examples / f"{entry.file}.toml")
    if entry.method:
        method = msgspec.structs.replace(config.method, name=entry.method, options=dict(entry.options))
        config = msgspec.structs.replace(config, method=method)
    rounds = entry.rounds or config.federation.rounds
    federation = msgspec.structs.replace(config.federation, seed=seed, rounds=rounds)
    return msgspec.structs.replace(config, federation=federation)


def result_path(folder: Path, comparison: Comparison, entry: Entry, seed: int) -> Path:
    """Where the figures of a run lie."""
    return folder / f"{comparison.name}-{entry.label.replace(', ', '-').replace(' ', '-')}-{seed}.json"


def grid(comparisons: Sequence[Comparison], seeds: Sequence[int]) -> Iterator[tuple[Comparison, Entry, int]]:
    """All runs, every method with a seed before the next seed."""
    for seed in seeds:
        for comparison in comparisons:
            for entry in comparison.entries:
                yield comparison, entry, seed


def measure(config: RunConfig, folder: Path, *, workers: int, device: str = "cpu") -> dict[str, Any]:
    """Simulate a run, or the rest of one; its figures round by round."""
    folder.mkdir(parents=True, exist_ok=True)
    record: Record = begin(config, folder)
    simulate(config, folder, record, SimulationOptions(workers=workers, device=device, quiet=True))
    kept = ("train_loss", "bytes_up", "bytes_down", "simulated_s", "density", "evaluation")
    rounds = [{key: entry[key] for key in kept if key in entry} for entry in record.rounds]
    return {"seed": config.federation.seed, "rounds": rounds, "wall_s": record.wall_s}


def read_results(
    folder: Path, comparisons: Sequence[Comparison] = COMPARISONS
) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The runs that are there, by comparison, label and seed."""
    found = {}
    for comparison, entry, seed in grid(comparisons, SEEDS):
        path = result_path(folder, comparison, entry, seed)
        if path.exists():
            found[comparison.name, entry.label, seed] = json.loads(path.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Run the grid, or print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", choices=[c.name for c in COMPARISONS], help="these comparisons")
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--page", action="store_true", help="the page of what is there, on stdout")
    chosen = parser.parse_args()
    if chosen.page:
        print(page(COMPARISONS, read_results(chosen.folder)), end="")
        return
    wanted = [c for c in COMPARISONS if not chosen.only or c.name in chosen.only]
    for comparison, entry, seed in grid(wanted, chosen.seeds):
        path = result_path(chosen.folder, comparison, entry, seed)
        if path.exists():
            continue
        result = measure(configuration(entry, seed), chosen.folder / path.stem, workers=chosen.workers)
        write_atomically(path, json.dumps(result, indent=1).encode())
        accuracy = result["rounds"][-1]["evaluation"][entry.model]["accuracy"]
        print(f"{path.stem}: {accuracy:.4f} after {result['wall_s']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
